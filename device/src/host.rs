//! Host memory aligned for vector loops.
//!
//! A block from the system's heap starts 16 bytes behind a page, so that every other vector of 64
//! bytes crosses a cache line. Blocks here start at a line. All but small ones are mapped, so that
//! the system has them back as soon as they are freed, and a plan of the memory holds. Large ones
//! request huge pages: rows of a matrix lie pages apart, and every address has to be translated.
#![allow(unsafe_code)] // allocation

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use record::files::process_limits;

/// Bytes of a cache line; buffers start at one.
pub const LINE_BYTES: usize = 64;

/// Blocks from here on are mapped. The heap would keep a freed one behind whatever else was
/// allocated after it.
#[cfg(target_os = "linux")]
const MAPPED_BYTES_MIN: usize = 128 << 10;

/// Blocks from here on request huge pages: at least one of 2 MiB lies in them.
#[cfg(target_os = "linux")]
const HUGE_PAGES_BYTES_MIN: usize = 4 << 20;

/// Bytes of all blocks that were mapped so far.
static MAPPED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes of all blocks that this process has mapped so far, which the global allocator
/// does not see.
pub fn mapped_bytes() -> u64 {
    MAPPED_BYTES.load(Ordering::Relaxed)
}

/// A zeroed block that this owns.
#[derive(Debug)]
pub(crate) struct HostMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory like a `Vec<u8>`.
unsafe impl Send for HostMemory {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates so many bytes of zeros, aligned to a cache line.
    ///
    /// # Panics
    /// Panics if there is no such block, with the limit that is behind it.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, LINE_BYTES).expect("a size below isize::MAX");
        let start = match bytes {
            0 => Some(NonNull::without_provenance(
                std::num::NonZero::new(LINE_BYTES).expect("not zero"),
            )),
            _ if is_mapped(layout) => map(bytes),
            // SAFETY: the size is not zero.
            _ => NonNull::new(unsafe { alloc_zeroed(layout) }),
        };
        let start = start.unwrap_or_else(|| panic!("{}", process_limits::out_of_memory(bytes)));
        Self { start, layout }
    }

    /// The first byte; aligned to a cache line.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        match self.layout.size() {
            0 => {}
            // SAFETY: this block was mapped with this size, and nobody has it any more.
            bytes if is_mapped(self.layout) => unsafe { unmap(self.start, bytes) },
            // SAFETY: it was allocated with this layout, and nobody has it any more.
            _ => unsafe { dealloc(self.start.as_ptr(), self.layout) },
        }
    }
}

#[cfg(target_os = "linux")]
fn is_mapped(layout: Layout) -> bool {
    layout.size() >= MAPPED_BYTES_MIN
}

#[cfg(not(target_os = "linux"))]
fn is_mapped(_layout: Layout) -> bool {
    false
}

#[cfg(target_os = "linux")]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping wherever the system puts it.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
    let start = NonNull::new(start.ok()?)?;
    MAPPED_BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
    if bytes >= HUGE_PAGES_BYTES_MIN {
        // SAFETY: the pages of this mapping, whose content does not change. A kernel without huge
        // pages, or without any for programs that ask, refuses, and nothing depends on them.
        let _ = unsafe { madvise(start.as_ptr(), bytes, Advice::LinuxHugepage) };
    }
    Some(start.cast())
}

/// # Safety
/// The block was mapped with this size, and nobody uses it any more.
#[cfg(target_os = "linux")]
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: as this function. It only fails for what is no mapping.
    let unmapped = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
    debug_assert!(unmapped.is_ok(), "{unmapped:?}");
}

#[cfg(not(target_os = "linux"))]
fn map(_bytes: usize) -> Option<NonNull<u8>> {
    unreachable!("blocks are mapped on Linux alone")
}

#[cfg(not(target_os = "linux"))]
unsafe fn unmap(_start: NonNull<u8>, _bytes: usize) {
    unreachable!("blocks are mapped on Linux alone")
}
