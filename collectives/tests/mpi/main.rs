//! The contract on MPI, and the behaviour when a rank is missing. Needs an `mpirun`.
//!
//! Each test runs this same executable under mpirun, where the test `rank_of_a_job` is what every
//! rank executes. `YARDSTICK_MPIRUN` names another launcher than `mpirun`, and
//! `YARDSTICK_MPIRUN_ARGS` gives it arguments: `scripts/test-mpi.sh` tests other MPI libraries so.
#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, clippy::exit, reason = "helpers of tests, and processes of a job")]

mod allocations;
mod job;
mod roles;

use std::time::{Duration, Instant};

use job::Job;
use roles::{Role, Sharing};
use support::counting::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Entry point of a rank under mpirun, with the role from the environment; not a test by itself.
#[test]
fn rank_of_a_job() {
    if let Some(role) = Role::from_environment() {
        role.play();
    }
}

fn keeps_the_contract(world: usize, sharing: Sharing) {
    let job = Job::run_on(world, Role::Contract, sharing);
    assert!(job.success, "{world} ranks, {sharing:?}: {job}");
    assert_eq!(job.outcomes, vec!["ok"; world], "{sharing:?}: {job}");
}

#[test]
fn mpi_keeps_the_contract() {
    (1..=4).for_each(|world| keeps_the_contract(world, Sharing::Off));
}

#[test]
fn groups_keep_the_contract() {
    for (world, sharing) in [(2, Sharing::On), (4, Sharing::Off), (8, Sharing::On)] {
        let job = Job::run_on(world, Role::Groups, sharing);
        assert_eq!(job.outcomes, vec!["ok"; world], "{sharing:?}: {job}");
    }
}

#[test]
fn an_absent_member_of_a_group_is_named() {
    for sharing in [Sharing::On, Sharing::Off] {
        for role in [Role::AbsentMember, Role::AbsentOwner, Role::AbsentPeer] {
            let job = Job::run_on(4, role, sharing);
            assert_eq!(job.outcomes, ["ok"; 4], "{role:?}, {sharing:?}: {job}");
        }
    }
}

/// Without a smaller limit, the chunks of an exchange have their largest size.
#[test]
fn sums_of_large_buffers_have_the_order_of_ranks() {
    for world in [2, 3] {
        let job = Job::run_on(world, Role::LargeSums, Sharing::Off);
        assert_eq!(job.outcomes, vec!["ok"; world], "{job}");
    }
}

#[test]
fn shared_memory_keeps_the_contract() {
    (1..=4).for_each(|world| keeps_the_contract(world, Sharing::On));
}

/// Two nodes of two ranks, in whatever order a host file deals ranks to them, and nodes of
/// different sizes.
#[test]
fn several_nodes_keep_the_contract() {
    let nodes: [&[usize]; 6] =
        [&[0, 0, 1, 1], &[0, 1, 0, 1], &[0, 1, 1, 0], &[0, 0, 1], &[0, 1, 2, 1], &[0, 0, 0, 1]];
    for nodes in nodes {
        keeps_the_contract(nodes.len(), Sharing::Nodes(nodes));
    }
}

/// A rank that cannot create or map shared memory, as in a container that forbids it: all ranks
/// fall back to MPI, report the reason, and keep the contract.
#[test]
fn all_ranks_fall_back_where_one_cannot_share_memory() {
    for role in [Role::NoCreation, Role::NoLaterCreation, Role::NoMapping] {
        let job = Job::run(2, role);
        assert_eq!(job.outcomes, ["ok", "ok"], "{role:?}: {job}");
    }
}

#[test]
fn memory_is_shared_only_if_all_ranks_want_it() {
    let job = Job::run(2, Role::Disagree);
    assert_eq!(job.outcomes, ["ok", "ok"], "{job}");
}

#[test]
fn an_absent_rank_is_a_deadline_for_the_others() {
    for sharing in [Sharing::On, Sharing::Off] {
        let job = Job::run_on(3, Role::Absent, sharing);
        assert_eq!(job.outcomes[..2], ["ok", "ok"], "{sharing:?}: {job}");
        assert!(!job.success, "ranks that exit with 5 make mpirun fail: {job}");
    }
}

#[test]
fn a_rank_that_hangs_in_the_middle_is_a_deadline() {
    for sharing in [Sharing::On, Sharing::Off] {
        let job = Job::run_on(2, Role::Hang, sharing);
        assert_eq!(job.outcomes[0], "ok", "{sharing:?}: {job}");
    }
}

#[test]
fn a_rank_that_never_opens_is_a_lost_peer_for_the_others() {
    let job = Job::run(2, Role::NeverOpen);
    assert_eq!(job.outcomes[0], "ok", "{job}");
}

#[test]
fn messages_of_wrong_length_are_errors() {
    for role in [Role::MessageTooLong, Role::MessageTooShort, Role::ManyTooLong, Role::ManyTooShort]
    {
        let job = Job::run(2, role);
        assert_eq!(job.outcomes[0], "ok", "{job}");
    }
}

#[test]
fn abandoning_ends_at_once() {
    let job = Job::run(2, Role::Abandon);
    assert_eq!(job.outcomes, ["ok", "ok"], "{job}");
}

#[test]
fn closing_alone_ends_at_its_deadline() {
    let job = Job::run(2, Role::CloseAlone);
    assert_eq!(job.outcomes[0], "ok", "{job}");
}

/// Launchers end the job when a rank is killed, by default; no process or file may be left over.
#[test]
fn a_killed_rank_ends_the_job() {
    let job = Job::run(2, Role::Killed);
    assert!(!job.success, "{job}");
    // A launcher may end shortly before a process that it killed, and other jobs have such files.
    let end = Instant::now() + Duration::from_secs(60);
    while let Some(left) = left_over(&job) {
        assert!(Instant::now() < end, "{left} is left over: {job}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A process of the job that still runs, or a file in shared memory.
fn left_over(job: &Job) -> Option<String> {
    let pid = |outcome: &String| {
        let pid = outcome.strip_prefix("pid ").unwrap_or_else(|| panic!("{job}"));
        pid.to_owned()
    };
    let running = job.outcomes.iter().map(pid).find(|pid| job::is_running(pid));
    let mut files = std::fs::read_dir("/dev/shm").unwrap();
    let names = files.by_ref().map(|it| it.unwrap().file_name().to_string_lossy().into_owned());
    running.or_else(|| names.into_iter().find(|name| name.contains("yardstick")))
}

/// Survivors detect the failure themselves under a launcher that does not end the job.
#[test]
fn survivors_of_a_killed_rank_get_an_error() {
    let job = Job::run(2, Role::Survive);
    assert_eq!(job.outcomes[0], "ok", "{job}");
}
