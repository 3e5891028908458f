// A driver without a device, for cuDNN that makes plans on a machine without one. Kernels are
// "loaded", because a plan is complete only then; every other call says that there is no device.

enum { SUCCESS = 0, NO_DEVICE = 100 };

#define WITHOUT_DEVICE(function) \
    int function(void) { return NO_DEVICE; }

WITHOUT_DEVICE(cuCtxGetCurrent)
WITHOUT_DEVICE(cuCtxGetLimit)
WITHOUT_DEVICE(cuCtxPopCurrent)
WITHOUT_DEVICE(cuCtxPushCurrent)
WITHOUT_DEVICE(cuDeviceGet)
WITHOUT_DEVICE(cuDeviceGetCount)
WITHOUT_DEVICE(cuDriverGetVersion)
WITHOUT_DEVICE(cuGetErrorName)
WITHOUT_DEVICE(cuGetErrorString)
WITHOUT_DEVICE(cuLaunchCooperativeKernel)
WITHOUT_DEVICE(cuLaunchKernel)
WITHOUT_DEVICE(cuLaunchKernelEx)
WITHOUT_DEVICE(cuLibraryLoadFromFile)
WITHOUT_DEVICE(cuLinkAddData)
WITHOUT_DEVICE(cuLinkComplete)
WITHOUT_DEVICE(cuLinkCreate)
WITHOUT_DEVICE(cuLinkDestroy)
WITHOUT_DEVICE(cuModuleGetFunction)
WITHOUT_DEVICE(cuModuleLoadData)
WITHOUT_DEVICE(cuModuleUnload)
WITHOUT_DEVICE(cuOccupancyMaxPotentialClusterSize)
WITHOUT_DEVICE(cuStreamGetCtx)
WITHOUT_DEVICE(cuTensorMapEncodeIm2col)
WITHOUT_DEVICE(cuTensorMapEncodeTiled)

static int loaded;

int cuLibraryLoadData(void** library, const void* code) {
    *library = &loaded;
    return code ? SUCCESS : NO_DEVICE;
}

int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
    *kernel = library;
    return name ? SUCCESS : NO_DEVICE;
}

int cuKernelGetFunction(void** function, void* kernel) {
    *function = kernel;
    return SUCCESS;
}

int cuKernelSetAttribute(int attribute, int value, void* kernel, int device) {
    (void)attribute, (void)value, (void)kernel, (void)device;
    return SUCCESS;
}

int cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) {
    (void)attribute, (void)kernel, (void)device;
    *value = 0;
    return SUCCESS;
}

int cuLibraryUnload(void* library) {
    (void)library;
    return SUCCESS;
}
