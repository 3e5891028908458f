//! Opening the tiers of a run on all ranks: each is used by all or by none.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use checkpoint::remote::{Remote, RemoteOptions};
use checkpoint::tier::{LocalTier, ObjectTier, Scope, Tier};
use checkpoint::{Error, Identity, Member, Partner, Reads, Store, Unusable};
use record::files::{IoError, Mode};
use record::text::is_remote;
use serde::{Deserialize, Serialize};

use super::partner::refused;
use super::tiers::Planned;
use crate::failure::{Failure, Outcome};
use crate::ranks::Ranks;
use record::ExitCode;

/// Time in which a file that rank 0 wrote on a shared tier must become visible: a network file
/// system may show it late.
const VISIBLE_WITHIN: Duration = Duration::from_secs(30);
const VISIBLE_POLL: Duration = Duration::from_millis(50);

/// Opened tiers of a run.
#[derive(Debug, Default)]
pub struct Opened {
    pub(crate) members: Vec<Member>,
    /// Plan of each tier.
    pub(crate) planned: Vec<Planned>,
    /// Tiers that no rank saves on, because these ranks cannot; a restore reads those that are
    /// members.
    pub(crate) unusable: Vec<Unusable>,
}

/// Opens tiers on all ranks alike. If a rank cannot open a tier, no rank saves there. The same
/// applies to a shared tier that does not show a rank what rank 0 has written there: a checkpoint
/// would be committed without the files of that rank. A restore reads whatever is still readable
/// there. Requests to an object store time out after `deadline`, or its own timeout if that is
/// shorter. Collective.
///
/// # Errors
/// Exit code 2 if the rank that keeps the copy of a partner's files has them on the same disk. The
/// error of a tier that belongs to something else, on the rank that found it, and that of the
/// last tier if no other is left.
pub(crate) fn open(
    planned: Vec<Planned>,
    partner: Option<Partner>,
    identity: &Identity,
    deadline: Duration,
    ranks: Ranks<'_>,
) -> Outcome<Opened> {
    let mut opened = Opened::default();
    let mut can_save = false;
    for tier in planned {
        let opening = Opening { tier: &tier, identity, deadline };
        let own = opening.on_all(ranks)?;
        if let Some(partner) = partner.filter(|_| tier.has_partner_copies) {
            opening.require_own_disks(partner, own.is_ok(), ranks)?;
        }
        let failure = own.as_ref().err().map(|error| Unusable {
            tier: tier.name.to_owned(),
            rank: ranks.rank(),
            reason: error.to_string(),
            reads: if error.is_refusal() { Reads::All } else { Reads::Nothing },
        });
        let store = own.or_else(|error| opening.without_saves(error));
        let is_foreign = store.as_ref().is_err_and(belongs_to_others);
        let probes = ranks.gather(&TierProbe { failure, has_store: store.is_ok(), is_foreign })?;
        if let Some(rank) = probes.iter().position(|probe| probe.is_foreign) {
            let text = format!("rank {rank}: tier {} is not of this run; see its error", tier.name);
            let others = Failure::new(ExitCode::Checkpoint, anyhow::anyhow!(text)).caused_by(rank);
            return Err(store.map_or_else(Failure::from, |_| others));
        }
        if let Ok(store) = store
            && tier.is_read(&probes)
        {
            let (name, scope, store) = (tier.name.to_owned(), tier.scope, Arc::new(store));
            opened.members.push(Member { name, scope, store });
            opened.planned.push(tier);
        }
        let failures = probes.into_iter().filter_map(|probe| probe.failure);
        let saved = opened.unusable.len();
        opened.unusable.extend(failures);
        can_save |= saved == opened.unusable.len();
    }
    if !can_save {
        let Unusable { tier, rank, reason, .. } = opened.unusable.swap_remove(0);
        let error = anyhow::anyhow!("no tier of checkpoints can be used: {tier}: {reason}");
        return Err(Failure::new(ExitCode::Checkpoint, error).caused_by(rank));
    }
    Ok(opened)
}

fn belongs_to_others(error: &Error) -> bool {
    matches!(error, Error::Mismatch { .. } | Error::UnsupportedFormat { .. })
}

/// View of a tier from one rank.
#[derive(Debug, Serialize, Deserialize)]
struct TierProbe {
    /// Reason why the rank cannot save there.
    failure: Option<Unusable>,
    /// True if its address is known and valid.
    has_store: bool,
    /// True if it has checkpoints of another run, or in another format.
    is_foreign: bool,
}

impl Planned {
    /// Returns whether a restore reads the tier: on the tiers of nodes each rank reads its own. All
    /// ranks read a shared tier, so only rank 0, which tries more writes, may have failed.
    fn is_read(&self, probes: &[TierProbe]) -> bool {
        let is_readable = |probe: &TierProbe| {
            probe.failure.as_ref().is_none_or(|failure| failure.reads != Reads::Nothing)
        };
        let has_store = probes.iter().all(|probe| probe.has_store);
        has_store
            && match self.scope {
                Scope::Shared => {
                    let (first, others) = probes.split_first().expect("rank 0 is there");
                    is_readable(first) && others.iter().all(|other| other.failure.is_none())
                }
                Scope::Node => probes.iter().any(is_readable),
            }
    }
}

/// Tier that is being opened.
struct Opening<'a> {
    tier: &'a Planned,
    identity: &'a Identity,
    deadline: Duration,
}

impl Opening<'_> {
    /// Opens the tier on rank 0 first: the other ranks look for a file that it leaves on a shared
    /// tier. Collective.
    fn on_all(&self, ranks: Ranks<'_>) -> Outcome<Result<Store, Error>> {
        let is_shared = self.tier.scope == Scope::Shared && !ranks.is_alone();
        let mark = format!("VISIBLE-{}", nonce());
        let is_first = ranks.rank() == 0;
        let first = is_first.then(|| self.first(is_shared.then_some(&*mark)));
        let is_marked = is_shared && matches!(first, Some(Ok(_)));
        let marks =
            ranks.gather_bytes(if is_marked { mark.as_bytes() } else { b"" })?.swap_remove(0);
        let own = first.unwrap_or_else(|| self.after_first(&String::from_utf8_lossy(&marks)));
        ranks.gather_bytes(b"")?; // all have looked
        Ok(own.map(|(place, store)| {
            if is_marked {
                drop(place.delete(&mark)); // one that stays harms nobody
            }
            store
        }))
    }

    /// Refuses copies on the disk of their owner, which would be lost with it: each rank leaves a
    /// mark on its disk, and looks for that of the rank whose files it keeps. Collective.
    fn require_own_disks(
        &self,
        partner: Partner,
        can_write: bool,
        ranks: Ranks<'_>,
    ) -> Outcome<()> {
        let place = self.place().ok().filter(|_| can_write);
        let mark = format!("VISIBLE-{}-{}", ranks.rank(), nonce());
        let marked = place.as_ref().filter(|place| place.replace(&mark, b"").is_ok());
        // A rank that cannot leave one has no files of which there could be a copy.
        let marks = ranks.gather(&marked.map(|_| mark.clone()))?;
        let exists = |mark: &str| place.as_ref().is_some_and(|it| it.exists(mark).unwrap_or(false));
        let is_same = marks[partner.kept].as_deref().is_some_and(exists);
        let found = ranks.gather(&is_same.then_some(partner.kept))?;
        if let Some(place) = marked {
            drop(place.delete(&mark)); // one that stays harms nobody
        }
        let same = found.iter().enumerate().find_map(|(keeper, kept)| Some((keeper, (*kept)?)));
        let Some((keeper, kept)) = same else { return Ok(()) };
        let address = &self.tier.address;
        Err(refused(&format!(
            "a disk of its own on each node, found the files of rank {kept} on that of rank \
             {keeper}, which is to keep their copy: {address} is the same folder on both nodes"
        )))
    }

    fn first(&self, mark: Option<&str>) -> Result<(Arc<dyn Tier>, Store), Error> {
        if self.tier.is_object() {
            check_exclusive_put(&remote(&self.tier.address, self.deadline)?)?;
        }
        let place = self.place()?;
        let store = self.store(&place)?;
        mark.map_or(Ok(()), |mark| place.replace(mark, b""))?;
        Ok((place, store))
    }

    fn after_first(&self, mark: &str) -> Result<(Arc<dyn Tier>, Store), Error> {
        let place = self.place()?;
        if !mark.is_empty() {
            self.check_visible(&*place, mark)?;
        }
        let store = self.store(&place)?;
        Ok((place, store))
    }

    fn check_visible(&self, place: &dyn Tier, mark: &str) -> Result<(), Error> {
        let end = Instant::now() + VISIBLE_WITHIN.min(self.deadline);
        while !place.exists(mark)? {
            if Instant::now() >= end {
                let reason =
                    "the file that rank 0 wrote is not visible: is it shared by all nodes?";
                let absent = io::Error::new(io::ErrorKind::NotFound, reason);
                return Err(IoError::at(&place.path(""), "use")(absent).into());
            }
            thread::sleep(VISIBLE_POLL);
        }
        Ok(())
    }

    /// Returns the tier for reading only, after an error of opening it for saves.
    fn without_saves(&self, error: Error) -> Result<Store, Error> {
        if belongs_to_others(&error) {
            return Err(error);
        }
        let place = self.place().map_err(|_| error)?;
        Ok(Store::without_saves(place, self.identity).with_scope(self.tier.scope))
    }

    fn store(&self, place: &Arc<dyn Tier>) -> Result<Store, Error> {
        Ok(Store::open(Arc::clone(place), self.identity)?.with_scope(self.tier.scope))
    }

    fn place(&self) -> Result<Arc<dyn Tier>, Error> {
        let Planned { name, address, .. } = self.tier;
        if address.is_empty() {
            let reason = "no path of it is known on this rank";
            let unknown = io::Error::new(io::ErrorKind::NotFound, reason);
            return Err(IoError::at(name.as_ref(), "use")(unknown).into());
        }
        place(address, self.deadline)
    }
}

/// Returns the tier at a path or URL. Each request to an object store times out after `timeout`,
/// or the store's own if that is shorter. Accesses nothing.
///
/// # Errors
/// If a URL is not that of a usable object store.
pub fn place(address: &str, timeout: Duration) -> Result<Arc<dyn Tier>, Error> {
    place_with(address, timeout, Mode::Run)
}

/// Returns the tier like [`place`], with another mode for new files of a file system.
///
/// # Errors
/// Those of [`place`].
pub fn place_with(address: &str, timeout: Duration, mode: Mode) -> Result<Arc<dyn Tier>, Error> {
    if is_remote(address) {
        return Ok(Arc::new(ObjectTier::new(remote(address, timeout)?)));
    }
    Ok(Arc::new(LocalTier::new(address).with_mode(mode)))
}

fn remote(address: &str, timeout: Duration) -> Result<Remote, IoError> {
    let own = RemoteOptions::default();
    let options = RemoteOptions { patience: own.patience.min(timeout), ..own };
    Remote::open_with(address, options)
}

/// Checks that the store refuses to overwrite: the commit of a checkpoint relies on it.
fn check_exclusive_put(remote: &Remote) -> Result<(), IoError> {
    if remote.honours_exclusive_put(&format!("PROBE-{}", nonce()))? {
        return Ok(());
    }
    let reason = "it ignores If-None-Match, so two runs could commit the same checkpoint";
    let error = io::Error::new(io::ErrorKind::Unsupported, reason);
    Err(IoError::at(&remote.url(""), "use the object store")(error))
}

/// Returns a name that no other process uses.
fn nonce() -> String {
    let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    format!("{now:x}-{}", std::process::id())
}

#[cfg(test)]
mod tests {
    use collectives::Threads;

    use super::*;
    use record::text::Interval;

    /// Partner of each of two ranks.
    const OTHER: [Partner; 2] = [Partner { keeper: 1, kept: 1 }, Partner { keeper: 0, kept: 0 }];

    fn planned(scope: Scope, address: &str) -> Planned {
        let (name, address) = ("shared", address.to_owned());
        Planned { name, scope, address, every: Interval::Never, keep: 1, has_partner_copies: false }
    }

    /// Opens a tier on two ranks, at these places.
    fn open_at(scope: Scope, places: [&str; 2]) -> [Outcome<Opened>; 2] {
        open_planned(places.map(|place| planned(scope, place)), None)
    }

    /// Opens a tier of nodes with partner copies on two ranks, at these places.
    fn open_with_copies(places: [&str; 2]) -> [Outcome<Opened>; 2] {
        let planned = |place| Planned { has_partner_copies: true, ..planned(Scope::Node, place) };
        open_planned(places.map(planned), Some(OTHER))
    }

    fn open_planned(planned: [Planned; 2], partners: Option<[Partner; 2]>) -> [Outcome<Opened>; 2] {
        let deadline = Duration::from_millis(200);
        let ranks = Threads::group(2).into_iter().zip(planned);
        let threads: Vec<_> = ranks
            .map(|(rank, planned)| {
                thread::spawn(move || {
                    let ranks = Ranks::new(&rank, Duration::from_secs(20));
                    let identity = Identity::new("run", "workload");
                    let partner = partners.map(|partners| partners[ranks.rank()]);
                    open(vec![planned], partner, &identity, deadline, ranks)
                })
            })
            .collect();
        let opened: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        opened.try_into().unwrap()
    }

    #[test]
    fn a_shared_tier_has_to_be_the_same_on_all_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
        let [here, there] = [here, there].map(|path| path.to_string_lossy().into_owned());
        for opened in open_at(Scope::Shared, [&here, &here]) {
            assert_eq!(opened.unwrap().members.len(), 1);
        }
        assert_eq!(std::fs::read_dir(&here).unwrap().count(), 1, "RUN.json");
        for opened in open_at(Scope::Node, [&here, &there]) {
            assert_eq!(opened.unwrap().members.len(), 1);
        }
        for opened in open_at(Scope::Shared, [&here, &there]) {
            let error = opened.unwrap_err().to_string();
            assert!(error.contains("is it shared by all nodes?"), "{error}");
        }
        for opened in open_at(Scope::Node, [&here, ""]) {
            let error = opened.unwrap_err().to_string();
            assert!(error.contains("no path of it is known"), "{error}");
        }
    }

    #[test]
    fn nodes_with_the_same_disk_cannot_keep_each_other_s_copies() {
        let folder = tempfile::tempdir().unwrap();
        let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&here, &link).unwrap();
        let [here, there, link] =
            [here, there, link].map(|path| path.to_string_lossy().into_owned());
        for opened in open_with_copies([&here, &there]) {
            assert_eq!(opened.unwrap().members.len(), 1);
        }
        for same in [&here, &link] {
            for opened in open_with_copies([&here, same]) {
                let failure = opened.unwrap_err();
                assert_eq!(failure.code, ExitCode::Usage);
                let text = failure.to_string();
                assert!(
                    text.contains("checkpoint.nvme.partner = true: expected a disk of its own")
                );
                assert!(text.contains("the files of rank 1 on that of rank 0"), "{text}");
            }
        }
        for opened in open_at(Scope::Node, [&here, &here]) {
            assert!(opened.is_ok(), "without copies, ranks of a node have one disk");
        }
        assert_eq!(std::fs::read_dir(&here).unwrap().count(), 1, "RUN.json, and no mark");
    }
}
