//! Versions of CUDA's libraries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Versions of the libraries that this process has opened; `None` for others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Versions {
    /// Newest CUDA version that the driver supports.
    pub cuda_driver: Option<String>,
    /// Kernel module of the driver, as in `580.65.06`; the version that `nvidia-smi` shows.
    pub kernel_module: Option<String>,
    /// NVRTC, the compiler of kernels.
    pub nvrtc: Option<String>,
    /// cuBLASLt, for matmuls.
    pub cublaslt: Option<String>,
    /// NCCL, for collectives.
    pub nccl: Option<String>,
    /// Files of these libraries.
    #[serde(default)]
    pub files: Vec<String>,
}
