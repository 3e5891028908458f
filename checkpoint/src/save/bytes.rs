//! Sources of the bytes of a rank's boxes, one box after the other.

use crate::error::Result;
use crate::tensor::Part;

/// The bytes of all boxes in the order in which they are written.
pub(super) trait ByteSource {
    /// Passes the next `bytes` bytes to `write`, in pieces.
    fn take(&mut self, bytes: usize, write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
}

/// Boxes in memory.
pub(super) struct PartBytes<'a> {
    parts: std::slice::Iter<'a, &'a Part<'a>>,
}

impl<'a> PartBytes<'a> {
    pub(super) fn new(parts: &'a [&'a Part<'a>]) -> Self {
        Self { parts: parts.iter() }
    }
}

impl ByteSource for PartBytes<'_> {
    fn take(&mut self, bytes: usize, write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let part = self.parts.next().expect("as many boxes as are written");
        assert_eq!(part.data.len(), bytes, "{}", part.tensor.name);
        write(part.data)
    }
}
