//! Buffers that all ranks of a node reach.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use super::{Mpi, join};
use crate::buffer::Shared;
use crate::node::{Address, Node, Offer, Region};
use crate::{Collective, Error};

/// Bytes of an encoded address.
const ADDRESS: usize = 32;

/// Makes a buffer on every rank that all ranks of its node map; on no rank where any of them fails,
/// because slots do as well then. Why they must is kept as a warning.
pub(super) fn share(
    mpi: &Mpi,
    node: &Node,
    bytes: usize,
    deadline: Instant,
) -> Result<Option<Shared>, Error> {
    let (group, rank): (&dyn Collective, usize) = (mpi, mpi.rank());
    if bytes == 0 {
        return Ok(None); // on all ranks
    }
    let offer = Offer::new(bytes);
    // Freed by success alone: after a failure the network may still write into them.
    let mut told = ManuallyDrop::new(vec![0u8; group.world() * ADDRESS]);
    if let Ok(offer) = &offer {
        let fields = offer.address.fields.iter().flat_map(|field| field.to_le_bytes());
        told.iter_mut().skip(rank * ADDRESS).zip(fields).for_each(|(to, from)| *to = from);
    }
    group.all_gather(&mut told, deadline)?;
    let told = ManuallyDrop::into_inner(told);
    let of = |rank: usize| decode(&told[rank * ADDRESS..(rank + 1) * ADDRESS]);
    let addresses: Vec<Address> = node.ranks().iter().map(|&rank| of(rank)).collect();
    let mapped = offer.and_then(|offer| offer.map(node.local(), &addresses));
    let mut outcomes = ManuallyDrop::new(vec![0.0_f64; group.world()]);
    outcomes[rank] = mapped.as_ref().map_or_else(|error| f64::from(join::code(error)), |_| 0.0);
    // Also tells each rank that it need not keep its file any longer.
    group.all_gather(&mut outcomes, deadline)?;
    let outcomes = ManuallyDrop::into_inner(outcomes);
    // Who made nothing is the cause of its neighbours' failure, too.
    let made_nothing = |&rank: &usize| of(rank).fields == [0; 4];
    let failed = |&rank: &usize| outcomes[rank] != 0.0;
    let ranks = 0..group.world();
    if let Some(rank) = ranks.clone().find(made_nothing).or_else(|| ranks.clone().find(failed)) {
        let cause = join::cause(outcomes[rank] as i32);
        mpi.warn(format!("slots carry gradients: rank {rank} could not share its buffer: {cause}"));
        return Ok(None);
    }
    let Ok((region, _file)) = mapped else { return Ok(None) }; // told to all: not reached
    let region: Arc<Region> = Arc::new(region);
    node.add(region.clone());
    let Some(pointer) = NonNull::new(region.own()) else { return Ok(None) };
    // SAFETY: fresh memory, which the region keeps mapped; peers touch it only in operations that
    // both sides take part in.
    Ok(Some(unsafe { Shared::new(pointer, bytes, region) }))
}

fn decode(bytes: &[u8]) -> Address {
    let field = |index: usize| {
        let mut field = [0; 8];
        field.copy_from_slice(&bytes[index * 8..(index + 1) * 8]);
        u64::from_le_bytes(field)
    };
    Address { fields: [field(0), field(1), field(2), field(3)] }
}
