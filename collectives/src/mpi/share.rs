//! Buffers that all ranks of a node reach.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use super::Mpi;
use crate::buffer::Shared;
use crate::node::{Address, Node, Offer, Region};
use crate::{Collective, Error};

/// Bytes of an encoded address.
const ADDRESS: usize = 32;

/// Makes a buffer on every rank that all ranks of its node map; on no rank where any of them fails,
/// because slots do as well then.
pub(super) fn share(
    mpi: &Mpi,
    node: &Node,
    bytes: usize,
    deadline: Instant,
) -> Result<Option<Shared>, Error> {
    let (group, rank): (&dyn Collective, usize) = (mpi, mpi.rank());
    let offer = (bytes > 0).then(|| Offer::new(bytes)).and_then(Result::ok);
    // Freed by success alone: after a failure the network may still write into them.
    let mut told = ManuallyDrop::new(vec![0u8; group.world() * ADDRESS]);
    if let Some(offer) = &offer {
        let fields = offer.address.fields.iter().flat_map(|field| field.to_le_bytes());
        told.iter_mut().skip(rank * ADDRESS).zip(fields).for_each(|(to, from)| *to = from);
    }
    group.all_gather(&mut told, deadline)?;
    let told = ManuallyDrop::into_inner(told);
    let of = |&rank: &usize| decode(&told[rank * ADDRESS..(rank + 1) * ADDRESS]);
    let addresses: Vec<Address> = node.ranks().iter().map(of).collect();
    let mapped = offer.and_then(|offer| offer.map(node.local(), &addresses).ok());
    let mut succeeded = ManuallyDrop::new(vec![0u8; group.world()]);
    succeeded[rank] = u8::from(mapped.is_some());
    // Also tells each rank that it need not keep its file any longer.
    group.all_gather(&mut succeeded, deadline)?;
    let succeeded = ManuallyDrop::into_inner(succeeded);
    let Some((region, _file)) = mapped.filter(|_| !succeeded.contains(&0)) else { return Ok(None) };
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
