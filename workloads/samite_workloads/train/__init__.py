"""The trainer: one readable loop, its optimizer, its stages and the hand-over between them."""
