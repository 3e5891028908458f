//! Connections between ranks: transports, GPUDirect RDMA, and NICs.

mod gdr;
mod nics;
mod transport;

pub use gdr::{EndWithoutGdr, ends_without_gdr};
pub use nics::name_nics;
pub use transport::{NetworkEnd, Side, Transport};
