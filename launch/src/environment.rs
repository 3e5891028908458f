//! Environment variables that a library reads on its first call.
#![allow(unsafe_code)] // std::env::set_var

use std::io;

use crate::error::Error;

/// Sets a variable of this process at its start, before any other thread runs.
///
/// # Errors
/// [`Error::System`] when there are other threads, which may be reading the environment, or when
/// that cannot be determined.
pub fn set_variable(name: &str, value: &str) -> Result<(), Error> {
    let refused = |source| Error::System { action: format!("set {name}"), source };
    let threads = std::fs::read_dir("/proc/self/task").map_err(refused)?.count();
    if threads != 1 {
        let text = format!("expected the only thread of the process, found {threads} threads");
        return Err(refused(io::Error::other(text)));
    }
    // SAFETY: no other thread reads or writes the environment meanwhile: there is none, and only
    // this thread could start one.
    unsafe { std::env::set_var(name, value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only refusal is tested here; `tests/cuda/nccl.rs` shows success in whole processes.
    #[test]
    fn a_variable_is_not_set_beside_other_threads() {
        let name = "YARDSTICK_TEST_SET_VARIABLE";
        let beside_this_one = std::thread::spawn(move || set_variable(name, "1"));
        let error = beside_this_one.join().unwrap().unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("expected the only thread"), "{source}");
        assert_eq!(std::env::var_os(name), None);
    }
}
