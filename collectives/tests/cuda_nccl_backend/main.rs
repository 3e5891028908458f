//! The contract on NCCL, and the operations that only devices have: joining and settling. The ranks
//! are threads, each with a device of its own.
//!
//! Needs devices: `make test-cuda-emulated` provides emulated devices, whose streams are delayed at
//! random. Otherwise as many ranks are tested as there are devices; three of them may add in
//! another order than the contract's.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests"
)]
#![allow(unsafe_code)] // ends a process at once

mod device_copy;
mod joining;
mod mesh;

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::cuda::{self, Cuda};
use support::counting::Counting;
use yardstick_collectives::contract::{self, Terms, failures, values};
use yardstick_collectives::{Collective, Nccl, Threads};

use device_copy::{Channels, OnDevice};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TERMS: Terms = Terms {
    message_elements_max: 1000,
    timeout: Duration::from_secs(20),
    nodes: &[],
    sums_by_node: false,
    has_one_order: true,
};

/// Set in the process of one test.
const OWN_PROCESS: &str = "YARDSTICK_TEST_OWN_PROCESS";
/// Text that the process prints at its end.
const PASSED: &str = "passed in a process of its own";

/// Ranks that are tested at most, each with a device.
const RANKS_MAX: usize = 3;

/// Runs one test in a process of its own, where the emulated driver has enough devices and starts
/// each operation of a stream up to so much later than it could.
fn in_own_process(test: &str, delay_us: u32, body: impl FnOnce()) {
    let output = own_process(test, delay_us, body);
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}\n{}\n{}", output.status, texts[0], texts[1]);
    assert!(texts[0].contains(PASSED), "{}", texts[0]);
}

/// Runs one test in a process of its own, and returns what that printed.
fn own_process(test: &str, delay_us: u32, body: impl FnOnce()) -> Output {
    if std::env::var_os(OWN_PROCESS).is_some() {
        body();
        println!("{PASSED}");
        // As the program ends: exit handlers would free what NCCL's threads may still use.
        // SAFETY: it ends the process.
        unsafe { libc::_exit(0) };
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(OWN_PROCESS, "1");
    command.env("EMULATED_CUDA_DEVICES", mesh::RANKS_MAX.to_string());
    command.env("EMULATED_CUDA_DELAY_US", delay_us.to_string());
    command.output().unwrap()
}

/// The numbers of ranks for which there are devices.
fn worlds() -> std::ops::RangeInclusive<usize> {
    let devices = cuda::devices().unwrap_or_else(|error| panic!("{error}"));
    1..=RANKS_MAX.min(devices.len())
}

/// One rank of a group and its device.
struct Rank {
    nccl: Nccl,
    device: Cuda,
}

/// Runs the same on every rank.
fn on_ranks(world: usize, body: impl Fn(Rank) + Sync) {
    std::thread::scope(|threads| {
        for (rank, control) in Threads::group(world).into_iter().enumerate() {
            let body = &body;
            threads.spawn(move || {
                let device = Cuda::open(rank).unwrap();
                let nccl = Nccl::open(&control, &device, TERMS.timeout).unwrap();
                body(Rank { nccl, device });
            });
        }
    });
}

/// Runs `body` on two ranks; does nothing where there is one device, as on a machine with one GPU.
fn on_two_ranks(body: impl Fn(Rank) + Sync) {
    match *worlds().end() {
        1 => eprintln!("not shown: there is one device"),
        _ => on_ranks(2, body),
    }
}

fn close(on_device: OnDevice, nccl: Arc<Nccl>) {
    drop(on_device);
    Arc::into_inner(nccl).unwrap().close(soon()).unwrap();
}

fn soon() -> Instant {
    Instant::now() + TERMS.timeout
}

#[test]
fn nccl_keeps_the_contract() {
    in_own_process("nccl_keeps_the_contract", 100, || {
        for world in worlds() {
            on_ranks(world, |Rank { nccl, device }| {
                let nccl = Arc::new(nccl);
                let rank = OnDevice::new(nccl.clone(), &device, Channels::Data);
                contract::run_all(&rank, &TERMS);
                close(rank, nccl);
            });
        }
    });
}

/// The suite checks values on the control channel, which is the host's: here that is NCCL's too.
#[test]
fn all_operations_have_the_right_values() {
    in_own_process("all_operations_have_the_right_values", 100, || {
        for world in worlds() {
            on_ranks(world, |Rank { nccl, device }| {
                let nccl = Arc::new(nccl);
                let on_device = OnDevice::new(nccl.clone(), &device, Channels::Both);
                has_the_right_values(&on_device, &TERMS);
                assert!(on_device.used_device(), "operations went to NCCL");
            });
        }
    });
}

fn has_the_right_values(on_device: &dyn Collective, terms: &Terms) {
    values::all_reduce(on_device, terms);
    values::reduce_scatter(on_device, terms);
    values::all_gather(on_device, terms);
    values::broadcast(on_device, terms);
    values::sums_are_reproducible(on_device, terms);
    values::sums_have_the_order_of_ranks(on_device, terms);
}

#[test]
fn abandoning_is_final() {
    in_own_process("abandoning_is_final", 100, || {
        on_ranks(*worlds().end(), |Rank { nccl, device }| {
            let nccl = Arc::new(nccl);
            let on_device = OnDevice::new(nccl.clone(), &device, Channels::Data);
            failures::abandoning_is_final(&on_device, &TERMS);
            assert!(on_device.memory_at_risk());
        });
    });
}

#[test]
fn an_absent_rank_is_a_deadline_and_is_named() {
    in_own_process("an_absent_rank_is_a_deadline_and_is_named", 0, || {
        let timeout = Duration::from_secs(2);
        let world = *worlds().end();
        on_ranks(world, |Rank { nccl, device }| {
            let nccl = Arc::new(nccl);
            let on_device = OnDevice::new(nccl.clone(), &device, Channels::Data);
            let named = failures::an_absent_rank_is_a_deadline(&on_device, timeout);
            if on_device.rank() + 1 == world {
                std::thread::sleep(timeout + Duration::from_secs(3));
            } else {
                assert_eq!(named, [world - 1]);
            }
        });
    });
}
