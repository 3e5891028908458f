//! The heap as loops over vectors like it: a program makes it its own with `#[global_allocator]`.
//!
//! The system's large blocks start 16 bytes behind a page. Every other vector of 64 bytes then lies
//! in two cache lines, and every run of 128 bytes in three. Here they start at a line, and very
//! large ones ask for huge pages: rows of a matrix lie pages apart, and addresses have to be
//! translated. A large block that grows is copied.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use crate::ops::simd::LINE_BYTES;

/// Blocks from here on start at a cache line.
const LARGE: usize = 4 << 10;
/// Blocks from here on ask for huge pages: at least one of 2 MiB lies in them, wherever they start.
const HUGE: usize = 4 << 20;

/// The system's heap with large blocks aligned.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heap;

/// The block that one with its start aligned is made of; none for what the system does as well.
fn around(layout: Layout) -> Option<Layout> {
    if layout.size() < LARGE || layout.align() > LINE_BYTES {
        return None;
    }
    Layout::from_size_align(layout.size().checked_add(LINE_BYTES)?, align_of::<usize>()).ok()
}

/// The first line in a block that leaves room for an address before it, which becomes the block's.
///
/// # Safety
/// `block` must be null or a block that [`around`] says, of `size` bytes and a line.
unsafe fn aligned(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() {
        return block;
    }
    let to_line = LINE_BYTES - block.addr() % LINE_BYTES;
    let start = block.wrapping_add(to_line);
    // SAFETY: the distance is a multiple of an address's alignment, so at least its size.
    unsafe { start.cast::<*mut u8>().wrapping_sub(1).write(block) };
    if size >= HUGE {
        ask_for_huge_pages(start, size);
    }
    start
}

#[cfg(target_os = "linux")]
fn ask_for_huge_pages(start: *mut u8, size: usize) {
    let page = rustix::param::page_size();
    let first = start.wrapping_add(start.align_offset(page));
    let bytes = (size - (first.addr() - start.addr())) / page * page;
    // SAFETY: whole pages of this block; what is in them does not change. A kernel that has no huge
    // pages, or none for programs that ask, refuses.
    let _ = unsafe { rustix::mm::madvise(first.cast(), bytes, rustix::mm::Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_start: *mut u8, _size: usize) {}

// SAFETY: all blocks are the system's: as it gives them, or within larger ones, whose addresses lie
// before their starts. Which of both follows from the layout, the same when they are freed.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as this function; a block around another is larger.
        unsafe {
            match around(layout) {
                Some(block) => aligned(System.alloc(block), layout.size()),
                None => System.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above. Pages of zeros stay untouched.
        unsafe {
            match around(layout) {
                Some(block) => aligned(System.alloc_zeroed(block), layout.size()),
                None => System.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as this function; the address of a block around lies before its start.
        unsafe {
            match around(layout) {
                Some(block) => {
                    System.dealloc(start.cast::<*mut u8>().wrapping_sub(1).read(), block)
                }
                None => System.dealloc(start, layout),
            }
        }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as this function: a size that is valid with this alignment.
        unsafe {
            let other = Layout::from_size_align_unchecked(size, layout.align());
            if around(layout).is_none() && around(other).is_none() {
                return System.realloc(start, layout, size);
            }
            let moved = self.alloc(other);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(start, moved, layout.size().min(size));
                self.dealloc(start, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every block of a size on either side of each border, then the same made longer and shorter.
    #[test]
    fn blocks_keep_what_is_in_them_and_large_ones_start_at_a_line() {
        let sizes = [1, LARGE - 1, LARGE, LARGE + 1, HUGE - 1, HUGE, 3 * HUGE + 5];
        for (size, other) in sizes.into_iter().flat_map(|size| sizes.map(|other| (size, other))) {
            for align in [1, 8, 64, 4096] {
                let layout = Layout::from_size_align(size, align).unwrap();
                let resized = Layout::from_size_align(other, align).unwrap();
                // SAFETY: blocks are used within their sizes, and freed as they were made.
                unsafe {
                    let start = Heap.alloc_zeroed(layout);
                    let bytes = std::slice::from_raw_parts_mut(start, size);
                    assert!(bytes.iter().all(|&byte| byte == 0), "{layout:?}");
                    (bytes[0], bytes[size - 1]) = (1, 2);
                    let start = Heap.realloc(start, layout, other);
                    let is_aligned = |to: usize| start.addr().is_multiple_of(to);
                    assert!(is_aligned(align) && (other < LARGE || is_aligned(LINE_BYTES)));
                    let bytes = std::slice::from_raw_parts_mut(start, other);
                    assert_eq!(bytes[0], if size == 1 { 2 } else { 1 }, "{layout:?} to {other}");
                    assert!(other < size || bytes[size - 1] == 2, "{layout:?} to {other}");
                    bytes.fill(3);
                    Heap.dealloc(start, resized);
                }
            }
        }
    }
}
