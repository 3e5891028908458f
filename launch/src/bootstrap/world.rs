//! The rendezvous: ranks exchange where they are, and each derives its placement and threads.

use std::mem::ManuallyDrop;
use std::time::Instant;

use super::group::Group;
use super::launcher::Launcher;
use super::options::Options;
use crate::error::Error;
use crate::placement::{Placement, RankLocation, ThreadPlan, unused_cores};

/// A rank that knows the others.
#[derive(Debug)]
pub struct World {
    /// Communication with the other ranks.
    pub collective: Group,
    /// Where this rank is.
    pub placement: Placement,
    /// Host of every rank.
    pub hosts: Vec<String>,
    /// Compute threads of this rank, and their cores.
    pub threads: ThreadPlan,
    /// Logical processors that the launcher may run on and no rank of the machine is bound to,
    /// less siblings of used ones and what exceeds the CPU quota; 0 without a launcher, and when
    /// this rank has enough for the threads that were requested.
    pub unused_cores: usize,
}

impl World {
    /// Exchanges locations over a backend that is open already.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] when not all ranks arrive before the timeout.
    pub fn rendezvous(collective: impl Into<Group>, options: &Options) -> Result<Self, Error> {
        Self::rendezvous_after(None, collective.into(), options)
    }

    pub(super) fn rendezvous_after(
        launcher: Option<Launcher>,
        collective: Group,
        options: &Options,
    ) -> Result<Self, Error> {
        let rank = collective.rank();
        let locations = gather_locations(&collective, options)?;
        let placement = Placement::new(rank, &locations);
        let threads = ThreadPlan::of_rank(rank, &locations, options.threads);
        let own_cores = locations[rank].cores.len();
        let needs_more = options.threads.is_none_or(|threads| threads > own_cores);
        let unused_cores =
            if launcher.is_some() && needs_more { unused_cores(rank, &locations) } else { 0 };
        let hosts = locations.into_iter().map(|location| location.host).collect();
        Ok(Self { collective, placement, hosts, threads, unused_cores })
    }
}

/// Where every rank is, by rank.
fn gather_locations(collective: &Group, options: &Options) -> Result<Vec<RankLocation>, Error> {
    let rank = collective.rank();
    let size = RankLocation::BYTES;
    // After an error the network may still write to this memory: it is then never freed.
    let mut bytes = ManuallyDrop::new(vec![0_u8; collective.world() * size]);
    RankLocation::of_this_process().encode(&mut bytes[rank * size..(rank + 1) * size]);
    collective
        .all_gather(&mut bytes, Instant::now() + options.timeout)
        .map_err(|source| Error::Rendezvous { rank, source })?;
    let bytes = ManuallyDrop::into_inner(bytes);
    Ok(bytes.chunks(size).map(RankLocation::decode).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use collectives::Single;

    use super::*;
    use crate::bootstrap::options::Backend;
    use crate::placement::allowed_cores;

    const OPTIONS: Options = Options {
        backend: Backend::Auto,
        timeout: Duration::from_secs(20),
        close_timeout: Duration::from_secs(20),
        threads: None,
    };

    #[test]
    fn one_rank_is_a_world() {
        let world = World::rendezvous(Single::new(), &OPTIONS).unwrap();
        assert_eq!((world.placement.rank, world.placement.world), (0, 1));
        assert_eq!((world.placement.local_world, world.placement.nodes), (1, 1));
        assert_eq!(world.hosts, [world.placement.host.as_str()]);
        assert!(world.threads.threads >= 1);
    }

    #[test]
    fn ranks_of_one_process_share_its_cores() {
        let ranks: Vec<_> = collectives::Threads::group(3)
            .into_iter()
            .map(|rank| std::thread::spawn(|| World::rendezvous(rank, &OPTIONS)))
            .collect();
        let worlds: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
        for (rank, world) in worlds.iter().enumerate() {
            let placement = &world.placement;
            assert_eq!((placement.rank, placement.local_rank), (rank, rank));
            assert_eq!((placement.world, placement.local_world, placement.nodes), (3, 3, 1));
            assert_eq!(world.hosts.len(), 3);
        }
        let expected = ThreadPlan::of_first_rank(3, None);
        assert_eq!(worlds[0].threads, expected, "what a plan before the run assumes");
        assert!(worlds.iter().all(|world| world.threads.threads <= expected.threads));
        let threads: usize = worlds.iter().map(|world| world.threads.threads).sum();
        assert!(threads <= allowed_cores().len().max(3), "{threads} threads");
    }
}
