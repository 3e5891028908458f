//! The rendezvous: ranks exchange their locations, and each derives its placement and threads.

use std::mem::ManuallyDrop;
use std::time::Instant;

use super::group::Group;
use super::options::Options;
use crate::error::Error;
use crate::launcher::Launcher;
use crate::placement::{NumaNode, Placement, RankLocation, ThreadPlan, unused_cores};

/// A rank that knows its world.
#[derive(Debug)]
pub struct World {
    /// Communication with the other ranks.
    pub collective: Group,
    /// Placement of this rank.
    pub placement: Placement,
    /// Host of every rank.
    pub hosts: Vec<String>,
    /// Compute threads of this rank, and their cores.
    pub threads: ThreadPlan,
    /// Number of logical processors that the launcher may run on and to which no rank of the
    /// machine is bound, less siblings of used processors and those beyond the CPU quota. 0 without
    /// a launcher, and if this rank has enough for the requested threads.
    pub unused_cores: usize,
}

impl World {
    /// Exchanges locations over an open backend.
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
        let own = RankLocation::of_this_process();
        let locations = gather_locations(&collective, &own, options)?;
        let placement = Placement::new(rank, &locations);
        let threads = ThreadPlan::of_rank(rank, &locations, options.threads);
        let own_cores = locations[rank].cores.len();
        let needs_more = options.threads.is_none_or(|threads| threads > own_cores);
        let unused_cores =
            if launcher.is_some() && needs_more { unused_cores(rank, &locations) } else { 0 };
        let hosts = locations.into_iter().map(|location| location.host).collect();
        Ok(Self { collective, placement, hosts, threads, unused_cores })
    }

    /// Chooses the cores of this rank's threads anew, in the NUMA node of its compute device if
    /// that node is known and the rank may run there. A collective operation; call it before any
    /// thread is bound to cores.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] when not all ranks arrive before the timeout.
    pub fn choose_cores_near(
        &mut self,
        node: Option<&NumaNode>,
        options: &Options,
    ) -> Result<(), Error> {
        let mut own = RankLocation::of_this_process();
        if let Some(node) = node {
            own.cores = node.narrow(own.cores);
        }
        let locations = gather_locations(&self.collective, &own, options)?;
        let threads = ThreadPlan::of_rank(self.placement.rank, &locations, options.threads);
        let numa_node = node.filter(|node| node.has(&threads.cores)).map(|node| node.number);
        self.threads = ThreadPlan { numa_node, ..threads };
        Ok(())
    }
}

/// Gathers the location of every rank, by rank.
fn gather_locations(
    collective: &Group,
    own: &RankLocation,
    options: &Options,
) -> Result<Vec<RankLocation>, Error> {
    let rank = collective.rank();
    let size = RankLocation::BYTES;
    // The network may still write to this memory after an error: it is then never freed.
    let mut bytes = ManuallyDrop::new(vec![0_u8; collective.world() * size]);
    own.encode(&mut bytes[rank * size..(rank + 1) * size]);
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

    /// Plans the threads of two ranks, each near a node.
    fn threads_near(nodes: [&NumaNode; 2]) -> Vec<ThreadPlan> {
        let ranks = collectives::Threads::group(2).into_iter().zip(nodes.map(NumaNode::clone));
        let choose = |(rank, node): (collectives::Threads, NumaNode)| {
            let mut world = World::rendezvous(rank, &OPTIONS).unwrap();
            world.choose_cores_near(Some(&node), &OPTIONS).unwrap();
            world.threads
        };
        let ranks: Vec<_> = ranks.map(|rank| std::thread::spawn(move || choose(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn ranks_choose_cores_near_what_they_compute_on() {
        let allowed = allowed_cores();
        let [first, last] = [allowed[0], allowed[allowed.len() - 1]];
        let node = |number, core| NumaNode { number, cores: vec![core] };
        let [near_first, near_last] = [node(0, first), node(1, last)];
        let unreachable = node(2, usize::MAX);
        // Default without nodes: rank 0 has the first cores and rank 1 the last.
        for nodes in [[&near_last, &near_first], [&near_first, &unreachable]] {
            for (threads, node) in threads_near(nodes).iter().zip(nodes) {
                let is_near = allowed.contains(&node.cores[0]);
                assert_eq!(threads.numa_node, is_near.then_some(node.number));
                assert_eq!(threads.cores == node.cores, is_near);
            }
        }
    }

    #[test]
    fn ranks_near_the_same_node_divide_its_cores() {
        let allowed = allowed_cores();
        let node = NumaNode { number: 0, cores: allowed.iter().copied().take(2).collect() };
        let plans = threads_near([&node, &node]);
        for plan in &plans {
            assert_eq!((plan.threads, plan.numa_node), (1, Some(0)), "{plans:?}");
        }
        // A CPU quota prevents division of the cores.
        let is_divided = plans[0].cores != plans[1].cores;
        assert_eq!(is_divided, plans[0].exclusive, "{plans:?}");
    }
}
