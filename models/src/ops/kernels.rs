//! The sources of all CUDA kernels, and their compilation for a format.

use cudarc::cublaslt::sys::cudaDataType;
use device::cuda::nvrtc::Source;
use device::cuda::{Cuda, Error, INTRINSICS, Module};
use half::bf16;

use crate::ops::Element;

/// The element that kernels compute in, which a source is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Kernels of the update, which have one format.
    None,
    F32,
    Bf16,
}

/// A file of kernels.
#[derive(Debug)]
pub(crate) struct KernelSource {
    name: &'static str,
    text: &'static str,
}

macro_rules! sources {
    ($($constant:ident = $path:literal;)*) => {
        $(
            pub(crate) const $constant: KernelSource =
                KernelSource { name: $path, text: include_str!($path) };
        )*
    };
}
sources! {
    ADAMW = "adamw/kernel.cu";
    ATTENTION = "attention/kernel.cu";
    BIAS = "matmul/bias.cu";
    CROSS_ENTROPY = "cross_entropy/kernel.cu";
    EMBEDDING = "embedding/kernel.cu";
    FLASH_ATTENTION = "attention/flash.cu";
    GELU = "gelu/kernel.cu";
    GRADIENT_NORM = "gradient_norm/kernel.cu";
    GRADIENT_SUM = "gradient_sum/kernel.cu";
    LAYER_NORM = "layer_norm/kernel.cu";
    RMS_NORM = "rms_norm/kernel.cu";
    ROPE = "rope/kernel.cu";
    ROW_SUMS = "row_sums/kernel.cu";
    SWIGLU = "swiglu/kernel.cu";
    UPDATE_NORM = "update_norm/kernel.cu";
    WGMMA_ATTENTION = "attention/wgmma.cu";
}

/// Headers that the sources include.
const HEADERS: [(&str, &str); 4] = [
    ("attention/tiles.cuh", include_str!("attention/tiles.cuh")),
    ("intrinsics.cuh", INTRINSICS),
    ("common.cuh", include_str!("common.cuh")),
    ("norm.cuh", include_str!("norm.cuh")),
];

/// Compiles a source for a device and a format, and loads it.
pub(crate) fn load(device: &Cuda, source: &KernelSource, format: Format) -> Result<Module, Error> {
    load_with(device, source, format, &[])
}

/// Compiles a source with further options of the compiler, and loads it.
pub(crate) fn load_with(
    device: &Cuda,
    source: &KernelSource,
    format: Format,
    options: &[&str],
) -> Result<Module, Error> {
    let KernelSource { name, text } = *source;
    let element: &[&str] = match format {
        Format::None => &[],
        Format::F32 => &["-DELEMENT_F32"],
        Format::Bf16 => &["-DELEMENT_BF16"],
    };
    let options = [element, options].concat();
    Module::load(device, &Source { name, text, headers: &HEADERS, options: &options })
}

/// An element that kernels compute in.
pub(crate) trait CudaElement: Element<Wide = f32> {
    /// Format for which sources are compiled.
    const FORMAT: Format;
    /// Elements in an access of 16 bytes.
    const PACK: usize = 16 / size_of::<Self>();
    /// cuBLASLt's type of the elements.
    const MATRIX: cudaDataType;
}

impl CudaElement for f32 {
    const FORMAT: Format = Format::F32;
    const MATRIX: cudaDataType = cudaDataType::CUDA_R_32F;
}

impl CudaElement for bf16 {
    const FORMAT: Format = Format::Bf16;
    const MATRIX: cudaDataType = cudaDataType::CUDA_R_16BF;
}

/// Blocks of an element-wise kernel for each multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: usize = 8;

/// Most blocks of a kernel that strides over its elements.
pub(crate) fn blocks_max(device: &Cuda) -> usize {
    device.multiprocessors() * BLOCKS_PER_MULTIPROCESSOR
}
