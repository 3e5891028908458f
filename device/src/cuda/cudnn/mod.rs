//! cuDNN's backend interface: descriptors of a computation, plans made of them, and their
//! execution.
//!
//! A descriptor is created, given attributes, and finalized, which is when cuDNN checks it. A plan
//! can be made for an absent device, from its properties alone. Numbers of attributes are those of
//! `cudnn_graph.h`; statuses and enumerations are plain integers, since a later version may return
//! one that this program does not know.

mod descriptor;
mod handle;
mod library;
mod numbers;
mod refusal;

pub use descriptor::{Builder, Descriptor};
pub use handle::{Binding, Handle};
pub use library::Cudnn;
pub use numbers::{Attribute, ComparisonMode, DataType, HeuristicMode, Kind, Knob};
pub use refusal::Refusal;
