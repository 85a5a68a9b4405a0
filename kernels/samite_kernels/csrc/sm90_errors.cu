// Names for the codes that the entry points return.
#include <cuda_runtime.h>

extern "C" const char* sm90_error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
