//! Arguments that a rank can know to be wrong without asking the others. All backends check them.

use device::Place;

use super::error::Error;
use super::group::Membership;
use super::message::Message;
use super::operation::Operation;
use super::raw_buffer::RawBuffer;

impl Operation {
    /// Checks that a backend that reads and writes the host's memory may start the operation on a
    /// buffer.
    pub(crate) fn require_host(self, buffer: RawBuffer) -> Result<(), Error> {
        match buffer.place() {
            Place::Host => Ok(()),
            place => Err(Error::Unsupported { operation: self, text: format!("in {place:?}") }),
        }
    }

    /// Checks that this rank may start the operation on a buffer.
    pub(crate) fn validate(self, buffer: RawBuffer, membership: &Membership) -> Result<(), Error> {
        let rank = membership.member;
        let world = membership.size();
        let len = buffer.len();
        let dtype = buffer.dtype();
        let mismatch = |text: String| Err(membership.mismatch(self, text));
        match self {
            Self::AllReduceSum | Self::ReduceScatterSum if !dtype.is_reducible() => {
                Err(Error::Unsupported { operation: self, text: format!("a sum over {dtype:?}") })
            }
            Self::Messages => {
                Err(Error::Unsupported { operation: self, text: "a single buffer".to_owned() })
            }
            Self::ReduceScatterSum | Self::AllGather if !len.is_multiple_of(world) => {
                mismatch(format!("expected a multiple of {world} ranks, found {len} elements"))
            }
            Self::Broadcast { root } if root >= world => {
                mismatch(format!("expected a root below {world}, found {root}"))
            }
            Self::Barrier if len != 0 => {
                mismatch(format!("expected an empty buffer, found {len} elements"))
            }
            Self::Send { to: peer, .. } | Self::Receive { from: peer, .. }
                if peer >= world || peer == rank =>
            {
                mismatch(format!("expected another rank below {world}, found {peer}"))
            }
            Self::Send { tag, .. } | Self::Receive { tag, .. } if tag > Self::TAG_MAX => {
                mismatch(format!("expected a tag of at most {}, found {tag}", Self::TAG_MAX))
            }
            _ => Ok(()),
        }
    }
}

impl Message {
    /// Checks that this rank may start the message.
    pub(crate) fn validate(self, membership: &Membership) -> Result<(), Error> {
        let Self { operation, buffer } = self;
        match operation.peer() {
            Some(_) => operation.validate(buffer, membership),
            None => {
                let text = "a place among grouped messages".to_owned();
                Err(Error::Unsupported { operation, text })
            }
        }
    }
}
