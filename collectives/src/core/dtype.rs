//! Element types of buffers.

/// Element type of a buffer, at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// Bytes; no reduction.
    U8,
    /// bfloat16. The host adds in f32 and rounds once a stage, NCCL rounds as it likes.
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl Dtype {
    /// Returns whether reductions support the type.
    pub(crate) fn is_reducible(self) -> bool {
        !matches!(self, Self::U8)
    }

    /// Size of one element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// An element type that ranks can exchange.
pub trait Element: device::Element {
    /// The element type as a run-time value.
    const DTYPE: Dtype;
}

impl Element for u8 {
    const DTYPE: Dtype = Dtype::U8;
}

impl Element for half::bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}

impl Element for f64 {
    const DTYPE: Dtype = Dtype::F64;
}
