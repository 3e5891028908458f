//! Work of the ranks of one node on buffers that all of them map.
//!
//! Every rank creates a memfd for each of its shared buffers, and the other ranks of the node map
//! it ([`share`]). A [`SharedBuffer`](shared_buffer::SharedBuffer) is one such buffer per rank:
//! each rank sums its part of all of them in place ([`in_place`]), without a copy in between. Ranks
//! synchronise by monotonic counters and futexes in a shared buffer of their own ([`counters`]). No
//! rank ever holds a lock, so a killed rank leaves none behind.

pub(crate) mod counters;
mod futex_event;
mod in_place;
mod memfd;
pub(crate) mod node;
pub(crate) mod share;
pub(crate) mod shared_buffer;
pub(crate) mod stage_runner;
#[cfg(test)]
mod tests;

pub(crate) use futex_event::FutexEvent;
