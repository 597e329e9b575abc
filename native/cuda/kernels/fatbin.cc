// The compiled kernels, as bytes of this library (kernels.cmake names the file).
__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".global hvd_cuda_fatbin\n"
    ".hidden hvd_cuda_fatbin\n"
    "hvd_cuda_fatbin:\n"
    ".incbin \"" HVD_CUDA_FATBIN
    "\"\n"
    ".popsection\n");
