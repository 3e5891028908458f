//! Places of memory, its allocation, and the right to use it.
//!
//! An [`Allocator`] hands out [`DeviceBuffer`]s of zeros in one [`Place`] and keeps a ledger of
//! their purposes. A buffer owns its memory; a [`View`] or [`ViewMut`] borrows a range of it. The
//! memory plan runs the same constructors with [`Allocator::counting`], which hands out buffers
//! without memory: no second list of sizes has to agree with the first.
//!
//! ```
//! use device::Allocator;
//!
//! fn moments(allocator: &Allocator, len: usize) -> [device::DeviceBuffer<f32>; 2] {
//!     ["Adam first moment", "Adam second moment"]
//!         .map(|purpose| allocator.for_purpose(purpose).zeros(len))
//! }
//!
//! let plan = Allocator::counting();
//! moments(&plan, 1 << 40); // four terabytes each, of which none are allocated
//! assert_eq!(plan.total_bytes(), 8 << 40);
//!
//! let [mut first, _] = moments(&Allocator::host(), 1000);
//! first.host_mut()[3] = 1.0;
//! assert_eq!(first.view().slice(2..5).host(), [0.0, 1.0, 0.0]);
//! ```

mod allocator;
mod buffer;
pub mod cuda;
mod device;
mod element;
mod host;
pub mod threads;
mod view;

pub use allocator::{Allocator, Item};
pub use buffer::{DeviceBuffer, Keeper};
pub use device::Device;
pub use element::Element;
pub use host::{LINE_BYTES, mapped_bytes};
pub use view::{View, ViewMut};

/// Place of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// Memory of the host, which the processor reads and writes directly.
    Host,
    /// Memory of a CUDA device, which kernels of that device read and write.
    Cuda {
        /// The number of the device.
        ordinal: usize,
    },
}
