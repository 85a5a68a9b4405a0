"""The `samite` command. One module per noun; nothing heavy is imported before a command runs."""
