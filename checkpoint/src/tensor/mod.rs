//! Boxes of named tensors, and the bytes that fill them: the data that a caller saves and restores.

mod covering;
mod region;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use region::{ContiguousRun, Region};

/// Element type, named as in safetensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[non_exhaustive]
pub enum Dtype {
    /// Unsigned byte.
    U8,
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }
}

/// A box of a global tensor, row-major: `offset[d] .. offset[d] + extent[d]` in each dimension d.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorBox {
    /// Name of the tensor.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape of the whole tensor; empty for a scalar.
    pub shape: Vec<usize>,
    /// First index of the box in each dimension.
    pub offset: Vec<usize>,
    /// Size of the box in each dimension.
    pub extent: Vec<usize>,
}

impl TensorBox {
    /// The box that is the whole tensor.
    pub fn whole(name: &str, dtype: Dtype, shape: &[usize]) -> Self {
        Self {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            offset: vec![0; shape.len()],
            extent: shape.to_vec(),
        }
    }

    /// Elements in the box.
    pub fn elements(&self) -> usize {
        self.extent.iter().product()
    }

    /// Bytes in the box.
    pub fn size_bytes(&self) -> usize {
        self.elements() * self.dtype.size_bytes()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.extent == self.shape
    }

    pub(crate) fn region(&self) -> Region {
        Region { offset: self.offset.clone(), extent: self.extent.clone() }
    }

    /// Panics unless the box is well formed and `bytes` is its size.
    pub(crate) fn assert_valid(&self, bytes: usize) {
        let dimensions = self.shape.len();
        assert!(
            self.offset.len() == dimensions && self.extent.len() == dimensions,
            "{}: offset and extent must have {dimensions} dimensions",
            self.name
        );
        assert!(self.is_inside(), "{}: box outside of the tensor: {self:?}", self.name);
        assert_eq!(bytes, self.size_bytes(), "{}: bytes of the box and of its data", self.name);
    }

    /// Returns whether the box lies inside of its tensor.
    fn is_inside(&self) -> bool {
        let ends = self.offset.iter().zip(&self.extent).map(|(at, extent)| at.checked_add(*extent));
        ends.zip(&self.shape).all(|(end, &size)| end.is_some_and(|end| end <= size))
    }

    /// Returns whether dimensions and sizes of a box from a file agree, and none of them exceeds
    /// what can be counted.
    pub(crate) fn is_well_formed(&self) -> bool {
        let dimensions = self.shape.len();
        let bytes = |sizes: &[usize]| {
            let product = |product: usize, size: &usize| product.checked_mul(*size);
            sizes.iter().try_fold(self.dtype.size_bytes(), product)
        };
        self.offset.len() == dimensions
            && self.extent.len() == dimensions
            && self.is_inside()
            && bytes(&self.shape).is_some()
            && bytes(&self.extent).is_some_and(|bytes| bytes > 0)
    }
}

impl fmt::Display for TensorBox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, extent, shape, .. } = self;
        write!(f, "offset {offset:?} extent {extent:?} of {shape:?}")
    }
}

/// A box to write.
#[derive(Clone)]
pub struct Part<'a> {
    /// Box of the data.
    pub tensor: TensorBox,
    /// Elements of the box, little endian, row-major: [`TensorBox::size_bytes`] bytes.
    pub data: &'a [u8],
}

/// Memory that a restore fills, of the host or of a device.
pub trait Memory: Send {
    /// Returns its size.
    fn size_bytes(&self) -> usize;

    /// Writes bytes from a position on. Memory that cannot be written keeps the error for its
    /// owner: other memory is not filled again because of it.
    ///
    /// # Panics
    /// Panics if they are more than there is room for.
    fn write(&mut self, start: usize, bytes: &[u8]);
}

impl Memory for &mut [u8] {
    fn size_bytes(&self) -> usize {
        self.len()
    }

    fn write(&mut self, start: usize, bytes: &[u8]) {
        self[start..start + bytes.len()].copy_from_slice(bytes);
    }
}

impl<const N: usize> Memory for [u8; N] {
    fn size_bytes(&self) -> usize {
        N
    }

    fn write(&mut self, start: usize, bytes: &[u8]) {
        self.as_mut_slice().write(start, bytes);
    }
}

impl Memory for Vec<u8> {
    fn size_bytes(&self) -> usize {
        self.len()
    }

    fn write(&mut self, start: usize, bytes: &[u8]) {
        self.as_mut_slice().write(start, bytes);
    }
}

/// A box to fill.
pub struct PartMut<'a> {
    /// Box of the data.
    pub tensor: TensorBox,
    /// Memory for its elements: [`TensorBox::size_bytes`] bytes.
    pub data: &'a mut dyn Memory,
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({:?}, {} bytes)", self.tensor, self.data.len())
    }
}

impl fmt::Debug for PartMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartMut({:?}, {} bytes)", self.tensor, self.data.size_bytes())
    }
}
