//! A message among several that are started together.

use super::operation::Operation;
use super::raw_buffer::RawBuffer;

/// A [send](Operation::Send) or a [receive](Operation::Receive) and its buffer, for
/// [`Collective::submit_group`](crate::Collective::submit_group).
///
/// Making one is harmless. The validity of its buffer is promised where it is submitted.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// Direction, peer and tag.
    pub operation: Operation,
    /// Elements that are sent, or received into.
    pub buffer: RawBuffer,
}
