//! Denies system calls to this process and its children, as the seccomp profile of a container
//! does.
#![allow(unsafe_code)]

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter, sock_fprog};

/// The error message of a denied system call.
pub fn denied_message() -> String {
    std::io::Error::from_raw_os_error(libc::EPERM).to_string()
}

/// Makes `memfd_create` fail.
pub fn deny_memfd_create() {
    deny(libc::SYS_memfd_create, None);
}

/// Makes opening an existing file for reading and writing fail, as for another process's memory in
/// `/proc`.
pub fn deny_opening_to_write() {
    deny(libc::SYS_openat, Some(Argument { index: 2, value: libc::O_RDWR | libc::O_CLOEXEC }));
}

/// An argument of a system call.
struct Argument {
    index: u32,
    value: libc::c_int,
}

/// Denies a system call, or only with this value of an argument.
fn deny(call: libc::c_long, argument: Option<Argument>) {
    let step = |code: u32, jump_false: u8, k: u32| sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_false,
        k,
    };
    // seccomp_data: the number of the call at offset 0, 64-bit arguments from offset 16 on, of
    // which the lower half is first.
    let load = BPF_LD | BPF_W | BPF_ABS;
    let equals = BPF_JMP | BPF_JEQ | BPF_K;
    let mut program = vec![step(load, 0, 0), step(equals, 1, call as u32)];
    if let Some(Argument { index, value }) = argument {
        program[1].jf = 3;
        program.extend([step(load, 0, 16 + 8 * index), step(equals, 1, value as u32)]);
    }
    let denied = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    program.extend([denied, libc::SECCOMP_RET_ALLOW].map(|k| step(BPF_RET | BPF_K, 0, k)));
    let program = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: plain values, and a program that is valid until the kernel has copied it.
    let outcomes = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!(outcomes, [0, 0], "{}", std::io::Error::last_os_error());
}
