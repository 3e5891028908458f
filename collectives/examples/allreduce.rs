//! Benchmark of an all-reduce over the ranks of one machine; `bench/allreduce.sh` calls it.
//!
//! ```text
//! mpirun -np 2 allreduce mpi|buffer|plain|memory [ELEMENTS [ROUNDS [scatter|gather]]]
//! ```
//! - `mpi`: the MPI library's own blocking, in-place MPI_Allreduce, without this crate
//! - `buffer`: this crate's backend, in buffers that it made, which ranks of a node share
//! - `plain`: this crate's backend without shared memory
//! - `memory`: the bandwidth of main memory when all ranks use it
//!
//! With `scatter` or `gather` the backend's roles reduce-scatter or all-gather instead. Rank 0
//! prints the median of the rounds: seconds per call, or bytes read and written per second by all
//! ranks together.
#![allow(unsafe_code, reason = "the MPI library's own call")]
#![allow(clippy::print_stdout, reason = "a program")]

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use device::Allocator;
use mpi::ffi;
use yardstick_collectives::{Channel, Collective, Mpi, MpiOptions, Operation};

unsafe extern "C" {
    static yardstick_mpi_in_place: *const c_void;
}

const DEADLINE: Duration = Duration::from_secs(120);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default| match arguments.get(index) {
        Some(text) => text.parse::<usize>(),
        None => Ok(default),
    };
    let elements = number(1, 31_000_000)?;
    let rounds = number(2, 9)?;
    let operation = match arguments.get(3).map(String::as_str) {
        None => Operation::AllReduceSum,
        Some("scatter") => Operation::ReduceScatterSum,
        Some("gather") => Operation::AllGather,
        Some(other) => return Err(format!("expected scatter or gather, found {other:?}").into()),
    };
    let mut own = vec![0f32; elements];
    fill(&mut own);
    let role = arguments.first().map(String::as_str);
    if role == Some("mpi") {
        library(&mut own, rounds);
        return Ok(());
    }
    let shared_memory = role != Some("plain");
    let mpi = Mpi::open(MpiOptions { shared_memory, ..MpiOptions::default() })?;
    match role {
        Some("plain") => backend(&mpi, operation, &mut own, rounds)?,
        Some("buffer") => {
            let group: &dyn Collective = &mpi;
            let mut buffer =
                group.buffer(&Allocator::host(), elements, Instant::now() + DEADLINE)?;
            fill(buffer.host_mut());
            backend(&mpi, operation, buffer.host_mut(), rounds)?;
        }
        Some("memory") => memory(&mpi, &mut own, rounds)?,
        other => return Err(format!("expected one of the roles above, found {other:?}").into()),
    }
    Ok(mpi.close(Instant::now() + DEADLINE)?)
}

fn fill(buffer: &mut [f32]) {
    buffer.iter_mut().enumerate().for_each(|(index, value)| *value = (index % 7) as f32);
}

fn backend(
    group: &dyn Collective,
    operation: Operation,
    buffer: &mut [f32],
    rounds: usize,
) -> Result<(), yardstick_collectives::Error> {
    let mut seconds = Vec::new();
    for _ in 0..=rounds {
        group.barrier(Instant::now() + DEADLINE)?;
        let start = Instant::now();
        let deadline = start + DEADLINE;
        group.run(Channel::Data, operation, &mut *buffer, deadline)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    if group.rank() == 0 {
        println!("{:.6}", median(&seconds[1..]));
    }
    Ok(())
}

/// Every rank updates its buffer in place, so that as many bytes are read as written: the least
/// that an all-reduce must do, in the same proportion.
fn memory(
    group: &dyn Collective,
    buffer: &mut [f32],
    rounds: usize,
) -> Result<(), yardstick_collectives::Error> {
    let mut seconds = Vec::new();
    for round in 0..=rounds {
        group.barrier(Instant::now() + DEADLINE)?;
        let start = Instant::now();
        for value in buffer.iter_mut() {
            *value = *value * 0.5 + round as f32;
        }
        std::hint::black_box(&mut *buffer);
        group.barrier(Instant::now() + DEADLINE)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    if group.rank() == 0 {
        let bytes = 2 * size_of_val(buffer) * group.world();
        println!("{:.0}", bytes as f64 / median(&seconds[1..]));
    }
    Ok(())
}

/// The library on the main thread, without this crate's backend.
fn library(buffer: &mut [f32], rounds: usize) {
    let check = |code: c_int| assert_eq!(code, ffi::MPI_SUCCESS as c_int, "MPI's code");
    let mut seconds = Vec::new();
    let mut rank = 0;
    // SAFETY: MPI's own sequence of calls on one thread, with a buffer of that many elements.
    unsafe {
        check(ffi::MPI_Init(std::ptr::null_mut(), std::ptr::null_mut()));
        let world = ffi::RSMPI_COMM_WORLD;
        check(ffi::MPI_Comm_rank(world, &mut rank));
        let start = buffer.as_mut_ptr().cast::<c_void>();
        let count = buffer.len() as c_int;
        let kind = ffi::RSMPI_FLOAT;
        let sum = ffi::RSMPI_SUM;
        for _ in 0..=rounds {
            check(ffi::MPI_Barrier(world));
            let called = Instant::now();
            check(ffi::MPI_Allreduce(yardstick_mpi_in_place, start, count, kind, sum, world));
            seconds.push(called.elapsed().as_secs_f64());
        }
        check(ffi::MPI_Finalize());
    }
    if rank == 0 {
        println!("{:.6}", median(&seconds[1..]));
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
}
