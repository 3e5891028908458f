//! Exit of a process that runs out of memory: with a sentence about the limit and an exit code,
//! where the standard library aborts.
#![allow(unsafe_code)] // allocation

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt;
use std::io::{Cursor, Write};

use launch::signals::exit_immediately;
use rustix::process::{Resource, getrlimit};

use record::ExitCode;
use telemetry::LogFormat;
use telemetry::log_lines;

/// System allocator of a program that cannot continue without memory.
#[derive(Debug)]
pub struct ExitingAllocator;

// SAFETY: the system's allocator keeps the contract; this only ends the process where it fails.
unsafe impl GlobalAlloc for ExitingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as this function.
        or_exit(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as this function.
        or_exit(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as this function.
        or_exit(unsafe { System.realloc(block, layout, size) }, size)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as this function.
        unsafe { System.dealloc(block, layout) }
    }
}

fn or_exit(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        exit(bytes);
    }
    block
}

/// Ends the process if it gets no block of this size. Allocates nothing, and runs no exit handlers,
/// which may.
fn exit(bytes: usize) -> ! {
    let mut buffer = [0; LINE_BYTES];
    let mut line = Cursor::new(&mut buffer[..]);
    let text = Sentence { bytes, limit: getrlimit(Resource::As).current };
    let _ = match log_lines::format() {
        LogFormat::Text => writeln!(line, "error: {text}"),
        LogFormat::Json => log_lines::write_error(&mut line, ExitCode::Environment, &text),
    };
    let length = line.position() as usize;
    let _ = std::io::stderr().write_all(&buffer[..length]);
    exit_immediately(ExitCode::Environment as i32)
}

/// Size of the buffer: more than the line takes with the longest host name, 64 bytes.
const LINE_BYTES: usize = 1024;

/// Message about the failure, without a character that JSON escapes.
struct Sentence {
    bytes: usize,
    limit: Option<u64>,
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot allocate {} bytes of memory", self.bytes)?;
        match self.limit {
            Some(limit) => {
                write!(f, "; the limit of address space in bytes (ulimit -v) is {limit}")
            }
            None => Ok(()),
        }
    }
}
