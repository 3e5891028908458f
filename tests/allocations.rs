//! Steady state allocates nothing: after step 3 the training thread never calls the allocator.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "a counting allocator is one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use collectives::{Collective, Single, Threads};
use trainer::config::Config;
use trainer::data::Source;
use trainer::inject::Injector;
use trainer::step::{Trainer, Wish};

thread_local! {
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Counts the allocations of threads that asked for it.
struct Counting;

fn count() {
    let _ = COUNTED.try_with(|counted| counted.set(counted.get().map(|n| n + 1)));
}

// SAFETY: every call goes on to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while `body` runs.
fn allocations(body: impl FnOnce()) -> u64 {
    COUNTED.set(Some(0));
    body();
    COUNTED.take().unwrap()
}

/// Trains on a pool of `threads`, and counts from step 4 to step 12.
fn allocations_of_training(
    collective: &dyn Collective,
    threads: usize,
    (workload, extra): (&str, &[&str]),
) -> u64 {
    let overrides: Vec<String> = extra.iter().map(ToString::to_string).collect();
    let config = Config::load(workload, &overrides).unwrap();
    let vocabulary = config.workload.model.vocabulary;
    let source = Source::open(&config.workload.data, vocabulary, &config.base).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let mut trainer = Trainer::new(&config, &source, collective, Injector::default()).unwrap();
        let mut step = || {
            trainer.time_step(|trainer| trainer.step(Wish::default())).unwrap();
        };
        (0..3).for_each(|_| step());
        allocations(|| (3..12).for_each(|_| step()))
    })
}

/// Several buckets, with the optimizer sharded and not, in both formats.
const SEVERAL: [[&str; 3]; 3] = [
    ["collectives.bucket_bytes=262144", "run.shard_optimizer=false", "precision.compute=f32"],
    ["collectives.bucket_bytes=262144", "run.shard_optimizer=true", "precision.compute=f32"],
    ["collectives.bucket_bytes=262144", "run.shard_optimizer=true", "precision.compute=bf16"],
];

#[test]
fn the_counter_counts() {
    let counted = allocations(|| drop(std::hint::black_box(vec![1_u8; 100])));
    assert_eq!(counted, 1);
}

#[test]
fn alone_on_one_and_two_threads() {
    for workload in ["smoke", "llama-smoke"] {
        for compute in ["f32", "bf16"] {
            let precision = format!("precision.compute={compute}");
            for threads in [1, 2] {
                let count =
                    allocations_of_training(&Single::new(), threads, (workload, &[&precision]));
                assert_eq!(count, 0, "{workload} in {compute} on {threads} threads");
            }
        }
    }
}

#[test]
fn on_two_ranks_with_several_buckets() {
    for extra in SEVERAL {
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let ranks: Vec<_> = Threads::group(2)
                .into_iter()
                .map(|rank| {
                    scope.spawn(move || allocations_of_training(&rank, 1, ("smoke", &extra)))
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(counts, [0, 0], "{extra:?}");
    }
}

/// Set for the ranks that the test below starts: what is no rank must not start more.
#[cfg(feature = "mpi")]
const RANK: &str = "YARDSTICK_TEST_RANK";

#[cfg(feature = "mpi")]
#[test]
fn on_two_ranks_of_mpi() {
    if std::env::var_os(RANK).is_some() {
        let mpi = collectives::Mpi::open(collectives::MpiOptions::default()).unwrap();
        assert_eq!(mpi.world(), 2);
        for extra in SEVERAL {
            let counted = allocations_of_training(&mpi, 1, ("smoke", &extra));
            assert_eq!(counted, 0, "rank {}, {extra:?}", mpi.rank());
        }
        return;
    }
    let launcher = std::env::var("YARDSTICK_MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let output = std::process::Command::new(launcher)
        .args(["-np", "2"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "on_two_ranks_of_mpi", "--nocapture"])
        .envs([(RANK, "1"), ("OMPI_ALLOW_RUN_AS_ROOT", "1")])
        .envs([("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"), ("OMPI_MCA_rmaps_base_oversubscribe", "1")])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.matches("test result: ok. 1 passed").count(), 2, "{text}");
}
