//! Versions of CUDA's libraries.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Versions of the libraries that this process has opened; `None` for others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Versions {
    /// The newest CUDA that the driver can run.
    pub cuda_driver: Option<String>,
    /// The driver's module in the kernel, as in `580.65.06`; what `nvidia-smi` calls its version.
    pub kernel_module: Option<String>,
    /// The compiler of kernels.
    pub nvrtc: Option<String>,
    /// Matmuls.
    pub cublaslt: Option<String>,
    /// Collectives.
    pub nccl: Option<String>,
    /// Attention.
    pub cudnn: Option<String>,
}
