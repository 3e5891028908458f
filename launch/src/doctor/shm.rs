//! Shared memory of a container: `/dev/shm`.

use super::check::{Check, CheckDesc, Context, Group, Scope};
use super::finding::Finding;
use super::limits::mebibytes;
use record::text::count;

/// Check of the space in `/dev/shm` for the ranks of a node.
pub(super) struct Shm;

/// Size of Open MPI's segment for each rank (`btl_vader_segment_size`). This program's own buffers
/// are in anonymous memory instead.
const BYTES_OF_A_RANK: u64 = 4 << 20;
/// Size that NVIDIA recommends for containers with NCCL.
const BYTES_FOR_NCCL: u64 = 1 << 30;
/// Default size in container runtimes, which NCCL's connections of two GPUs exceed.
const BYTES_BY_DEFAULT: u64 = 64 << 20;

impl Check for Shm {
    fn desc(&self) -> &'static CheckDesc {
        &CheckDesc {
            name: "shm",
            group: Group::Limits,
            scope: Scope::Node,
            inspects: "size and free space of /dev/shm",
            thresholds: "with several ranks on a node: fails below 4 MiB for each (Open MPI's \
                         segment), or on GPUs at 64 MiB and below (the default of containers, \
                         which NCCL exceeds); warns on GPUs below 1 GiB, NVIDIA's recommendation",
            remedy: "mount an emptyDir with medium Memory and a sizeLimit at /dev/shm; where it is \
                     full, remove what ended jobs have left there",
            fault: "tests/commands/doctor.rs: a_small_dev_shm_fails",
        }
    }

    fn run(&self, context: &Context) -> Finding {
        let path = context.root.join("dev/shm");
        let room = match rustix::fs::statvfs(&path) {
            Ok(system) => Room {
                size_bytes: system.f_blocks * system.f_frsize,
                free_bytes: system.f_bavail * system.f_frsize,
            },
            Err(error) => {
                let found = format!("{}: {error}", path.display());
                return Finding::fail(found, "a file system in memory");
            }
        };
        judge(room, context)
    }
}

/// Space in a file system.
#[derive(Debug, Clone, Copy)]
struct Room {
    size_bytes: u64,
    free_bytes: u64,
}

fn judge(Room { size_bytes, free_bytes }: Room, context: &Context) -> Finding {
    let ranks = context.local_world;
    let of_ranks = BYTES_OF_A_RANK * ranks as u64;
    // The free space may already exclude the segments of these ranks.
    let room_bytes = size_bytes.min(free_bytes + of_ranks);
    let found = match room_bytes < size_bytes {
        true => format!("{} free of {}", mebibytes(free_bytes), mebibytes(size_bytes)),
        false => mebibytes(size_bytes),
    };
    let needed = if context.on_cuda { of_ranks.max(BYTES_BY_DEFAULT + 1) } else { of_ranks };
    if ranks == 1 {
        Finding::pass(format!("{found}; one rank needs none"))
    } else if room_bytes < needed {
        let needed = needed.next_multiple_of(1 << 20);
        Finding::fail(found, format!("at least {} for {}", mebibytes(needed), count(ranks, "rank")))
    } else if context.on_cuda && room_bytes < BYTES_FOR_NCCL {
        Finding::warn(found, format!("{} for NCCL", mebibytes(BYTES_FOR_NCCL)))
    } else {
        Finding::pass(mebibytes(size_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status::{Fail, Pass, Warn};
    use super::super::testing::{Host, expect};
    use super::*;

    #[test]
    fn what_ranks_share_has_to_fit() {
        let host = Host::new(&[]);
        let cpu = host.context();
        let gpu = Context { on_cuda: true, ..cpu.clone() };
        let judge = |mebibytes: u64, free_mebibytes: u64, context: &Context| {
            let [size_bytes, free_bytes] = [mebibytes << 20, free_mebibytes << 20];
            judge(Room { size_bytes, free_bytes }, context)
        };
        expect(judge(8, 0, &cpu), Pass, "8 MiB");
        let little = expect(judge(7, 7, &cpu), Fail, "7 MiB");
        assert_eq!(little.expected.as_deref(), Some("at least 8 MiB for 2 ranks"));
        expect(judge(64, 64, &gpu), Fail, "64 MiB");
        expect(judge(512, 512, &gpu), Warn, "512 MiB");
        expect(judge(1024, 1016, &gpu), Pass, "1024 MiB");
        expect(judge(2048, 50, &gpu), Fail, "50 MiB free of 2048 MiB");
        expect(judge(2048, 600, &gpu), Warn, "600 MiB free of 2048 MiB");
        expect(judge(0, 0, &Context { local_world: 1, ..cpu }), Pass, "one rank needs none");
        host.expect(&Shm, Fail, "dev/shm: No such file");
    }
}
