//! Copies that go past the caches, to memory that another core reads next.
//!
//! A line that another core has read is its line too. An ordinary store to it must first take it
//! away there and fetch it, which between cores without a common cache made the whole all-reduce
//! four times slower than with these stores.
#![allow(unsafe_code)]

/// Copies all of `from`; [`fence`] before telling anybody.
///
/// # Panics
/// When lengths differ.
pub(super) fn copy<E: Copy>(from: &[E], to: &mut [E]) {
    assert_eq!(from.len(), to.len(), "lengths of a copy");
    let bytes = size_of_val(from);
    let (source, target) = (from.as_ptr().cast::<u8>(), to.as_mut_ptr().cast::<u8>());
    // SAFETY: two slices of that many bytes, which do not overlap.
    unsafe {
        let done = streamed(source, target, bytes);
        let rest = bytes - done;
        std::ptr::copy_nonoverlapping(source.add(done), target.add(done), rest);
    }
}

/// Copies whole cache lines where the target begins with one, and says how many bytes that were.
#[cfg(target_arch = "x86_64")]
unsafe fn streamed(from: *const u8, to: *mut u8, bytes: usize) -> usize {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const LINE: usize = 64;
    if !to.addr().is_multiple_of(LINE) {
        return 0;
    }
    let end = bytes / LINE * LINE;
    for start in (0..end).step_by(LINE) {
        // SAFETY: inside both, by the caller's promise; the target is aligned to a line.
        unsafe {
            let from = from.add(start).cast::<__m128i>();
            let to = to.add(start).cast::<__m128i>();
            let line = [0, 1, 2, 3].map(|quarter| _mm_loadu_si128(from.add(quarter)));
            for (quarter, bits) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(quarter), bits);
            }
        }
    }
    end
}

/// Elsewhere ordinary stores do it all.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn streamed(_: *const u8, _: *mut u8, _: usize) -> usize {
    0
}

/// Orders the copies before the next release store, which by itself does not on x86-64.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_whatever_the_alignment() {
        let from: Vec<u8> = (0..1000).map(|index| index as u8).collect();
        for (skip, len) in [(0, 1000), (0, 0), (1, 63), (64, 64), (3, 900), (128, 130)] {
            let mut to = vec![0u8; 1100];
            let offset = to.as_ptr().align_offset(64);
            copy(&from[skip..skip + len], &mut to[offset..offset + len]);
            fence();
            assert!(to[offset..offset + len] == from[skip..skip + len], "{skip}, {len}");
            assert!(to[offset + len..].iter().all(|&byte| byte == 0), "nothing beyond");
            copy(&from[skip..skip + len], &mut to[offset + 4..offset + 4 + len]);
            assert!(to[offset + 4..offset + 4 + len] == from[skip..skip + len], "unaligned");
        }
    }
}
