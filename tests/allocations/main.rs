//! Training allocates nothing in the steady state: after step 3 the training thread never calls the
//! allocator.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod steady_state;

use collectives::{Collective, Single, Threads};
use device::Device;
use steady_state::Training;
use support::Variant;
use support::counting::{Counting, own_calls};
use trainer::mesh::{Mesh, MeshShape, Placed};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations_of_training(mesh: Mesh<'_>, threads: usize, variant: Variant) -> u64 {
    let settings = ["batch.global_sequences=4", "batch.micro_sequences=1"];
    let training = Training { device: Device::Host, mesh, threads, settings: &settings };
    training.allocations(variant)
}

/// Allocations of one of four ranks in two shard groups of two, as the variant says, and with
/// sharded weights in two micro-batches that every second step computes again.
fn allocations_in_two_dimensions(world: &dyn Collective, variant: Variant) -> [u64; 2] {
    let shape = MeshShape { data: 2, shard: 2 };
    let groups = Placed::new(shape, &[0; 4]).open(world).unwrap();
    let mesh = Mesh::of_groups(shape, world, &groups);
    let settings = [
        "batch.global_sequences=8",
        "batch.micro_sequences=1",
        "parallel.sharded=weights",
        "sdc.recompute_every_steps=2",
    ];
    let training = Training { device: Device::Host, mesh, threads: 1, settings: &settings };
    [allocations_of_training(mesh, 1, variant), training.allocations(variant)]
}

#[test]
fn the_counter_counts_allocations() {
    let counted = own_calls(|| drop(std::hint::black_box(vec![1_u8; 100])));
    assert_eq!(counted, 1);
}

#[test]
fn one_rank_on_one_and_two_threads_allocates_nothing() {
    let single = Single::new();
    for variant in Variant::chosen() {
        for threads in [1, 2] {
            let count = allocations_of_training(Mesh::flat(&single, &single), threads, variant);
            assert_eq!(count, 0, "{variant:?} on {threads} threads");
        }
    }
}

#[test]
fn two_ranks_with_several_buckets_allocate_nothing() {
    for variant in Variant::chosen() {
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let ranks: Vec<_> = Threads::group(2)
                .into_iter()
                .map(|rank| {
                    scope.spawn(move || {
                        let single = Single::new();
                        allocations_of_training(Mesh::flat(&rank, &single), 1, variant)
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(counts, [0, 0], "{variant:?}");
    }
}

#[test]
fn four_ranks_in_two_dimensions_allocate_nothing() {
    for variant in Variant::corners() {
        let counts: Vec<[u64; 2]> = std::thread::scope(|scope| {
            let train = |world: Threads| allocations_in_two_dimensions(&world, variant);
            let ranks: Vec<_> = Threads::group(4)
                .into_iter()
                .map(|world| scope.spawn(move || train(world)))
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(counts, [[0; 2]; 4], "{variant:?}");
    }
}

/// Set for the ranks that the tests below start, which must not start more ranks.
#[cfg(feature = "mpi")]
const RANK: &str = "YARDSTICK_TEST_RANK";

#[cfg(feature = "mpi")]
#[test]
fn two_ranks_of_mpi_allocate_nothing() {
    if std::env::var_os(RANK).is_some() {
        let mpi = collectives::Mpi::open(collectives::MpiOptions::default()).unwrap();
        assert_eq!(mpi.world(), 2);
        let single = Single::new();
        for variant in Variant::chosen() {
            let counted = allocations_of_training(Mesh::flat(&mpi, &single), 1, variant);
            assert_eq!(counted, 0, "rank {}, {variant:?}", mpi.rank());
        }
        return;
    }
    let mut command = support::mpirun_test(2, "two_ranks_of_mpi_allocate_nothing");
    command.env(RANK, "1");
    support::finish(command).expect_test_passed();
}

#[cfg(feature = "mpi")]
#[test]
fn four_ranks_of_mpi_in_two_dimensions_allocate_nothing() {
    if std::env::var_os(RANK).is_some() {
        let world = collectives::Mpi::open(collectives::MpiOptions::default()).unwrap();
        for variant in Variant::corners() {
            let counted = allocations_in_two_dimensions(&world, variant);
            assert_eq!(counted, [0; 2], "rank {}, {variant:?}", world.rank());
        }
        return;
    }
    let test = "four_ranks_of_mpi_in_two_dimensions_allocate_nothing";
    let mut command = support::mpirun_test(4, test);
    command.env(RANK, "1");
    support::finish(command).expect_test_passed();
}
