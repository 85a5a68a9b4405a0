"""How CUDA sources become functions that Python can call: `build` compiles and finds the library, `launch` loads and calls it."""
