//! System calls that are refused to this process and its children for good, as the seccomp profile
//! of a container does it.
#![allow(unsafe_code)]
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter, sock_fprog};

/// What a process is told that is refused something.
pub fn told() -> String {
    std::io::Error::from_raw_os_error(libc::EPERM).to_string()
}

/// Memory without a name: memfd_create fails.
pub fn making_memory() {
    refuse(libc::SYS_memfd_create, None);
}

/// Files that are there, to read and write as Rust's library opens them: other processes' memory
/// behind `/proc` is one.
pub fn opening_to_write() {
    refuse(libc::SYS_openat, Some((2, libc::O_RDWR | libc::O_CLOEXEC)));
}

/// A system call, or only with this value of its argument of that number.
fn refuse(call: libc::c_long, argument: Option<(u32, libc::c_int)>) {
    let step = |code: u32, jump_false: u8, k: u32| sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_false,
        k,
    };
    // The number of the call, then its arguments, of which the lower half comes first.
    let (load, equals) = (BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K);
    let mut program = vec![step(load, 0, 0), step(equals, 1, call as u32)];
    if let Some((number, value)) = argument {
        program[1].jf = 3;
        program.extend([step(load, 0, 16 + 8 * number), step(equals, 1, value as u32)]);
    }
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    program.extend([refused, libc::SECCOMP_RET_ALLOW].map(|k| step(BPF_RET | BPF_K, 0, k)));
    let program = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain values, and a program that lives until the kernel has copied it.
    let outcomes = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!(outcomes, [0, 0], "{}", std::io::Error::last_os_error());
}
