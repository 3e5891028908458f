//! Ports for servers that are told where to listen.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ephemeral ports of Linux, which other tests bind all the time.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// A port of this machine on which nobody listens, and that no other call of this process returns.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let of_process = std::process::id().wrapping_mul(97);
    loop {
        let number = of_process.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + number % COUNT).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
