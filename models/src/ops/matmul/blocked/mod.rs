//! Products of any size: packed block by block for the caches, on one thread or several, with an
//! epilogue on each finished tile.

mod blocking;
mod driver;
mod epilogue;
mod extent;
mod grid;
mod workspace;

pub(in crate::ops) use driver::Product;
pub(in crate::ops) use epilogue::{NarrowOutput, Output, PostOp};
pub use extent::Extent;
pub(in crate::ops) use extent::ProductShape;
pub use workspace::Workspace;
