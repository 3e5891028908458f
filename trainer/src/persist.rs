//! Between the flat buffers of training and the named boxes of a checkpoint.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use checkpoint::{Dtype, Part, PartMut, Peers, PeersError, TensorBox};
use collectives::Collective;
use models::Layout;

use crate::shard::{Piece, Shard};
use crate::state::{State, WEIGHTS};

/// The ranks of a run as the checkpoint crate sees them.
#[derive(Debug)]
pub(crate) struct RankPeers<'world> {
    pub(crate) collective: &'world dyn Collective,
    pub(crate) deadline: Duration,
}

impl Peers for RankPeers<'_> {
    fn rank(&self) -> usize {
        self.collective.rank()
    }

    fn world(&self) -> usize {
        self.collective.world()
    }

    fn all_gather(&self, payload: &[u8]) -> Result<Vec<Vec<u8>>, PeersError> {
        gather_bytes(self.collective, payload, Instant::now() + self.deadline)
            .map_err(PeersError::new)
    }
}

/// All-gather of payloads of different lengths: lengths first, then padded bytes.
pub(crate) fn gather_bytes(
    collective: &dyn Collective,
    payload: &[u8],
    deadline: Instant,
) -> Result<Vec<Vec<u8>>, collectives::Error> {
    let (rank, world) = (collective.rank(), collective.world());
    // After an error the network may still write here: what was lent is then never freed.
    let mut lengths = ManuallyDrop::new(vec![0.0_f64; world]);
    lengths[rank] = payload.len() as f64;
    collective.all_gather(&mut lengths, deadline)?;
    let lengths = ManuallyDrop::into_inner(lengths);
    let longest = lengths.iter().fold(0.0_f64, |a, &b| a.max(b)) as usize;
    let mut bytes = ManuallyDrop::new(vec![0_u8; longest * world]);
    bytes[rank * longest..][..payload.len()].copy_from_slice(payload);
    collective.all_gather(&mut bytes, deadline)?;
    let bytes = ManuallyDrop::into_inner(bytes);
    let slices = lengths.iter().enumerate();
    Ok(slices.map(|(rank, &len)| bytes[rank * longest..][..len as usize].to_vec()).collect())
}

/// The name of a tensor of one buffer in a checkpoint.
fn name_in_checkpoint(prefix: &str, tensor: &str) -> String {
    format!("{prefix}.{tensor}")
}

/// The name of a weight in a checkpoint.
pub(crate) fn weight_in_checkpoint(tensor: &str) -> String {
    name_in_checkpoint(WEIGHTS, tensor)
}

/// What this rank saves: its parts of all buckets, so that ranks write each element once.
pub(crate) fn saved<'state>(
    state: &'state State<'_>,
    layout: &Layout,
    shard: &Shard,
) -> Vec<Part<'state>> {
    let mut parts = Vec::new();
    for (prefix, order, buffer) in state.buffers() {
        for piece in shard.saved() {
            let mut data = &buffer[order.of(&piece)];
            for tensor in boxes(prefix, layout, &piece) {
                let (own, rest) = data.split_at(tensor.elements());
                parts.push(Part { tensor, data: bytemuck::cast_slice(own) });
                data = rest;
            }
        }
    }
    parts
}

/// What this rank holds of the state, to be filled from a checkpoint of any world size.
pub(crate) fn held<'state>(
    state: &'state mut State<'_>,
    layout: &Layout,
    shard: &Shard,
) -> Vec<PartMut<'state>> {
    let mut parts = Vec::new();
    for (prefix, order, buffer) in state.buffers_mut() {
        let (mut rest, mut position) = (buffer, 0);
        for piece in shard.pieces() {
            let place = order.of(piece);
            rest = rest.split_at_mut(place.start - position).1;
            position = place.end;
            for tensor in boxes(prefix, layout, piece) {
                let (own, tail) = rest.split_at_mut(tensor.elements());
                parts.push(PartMut { tensor, data: bytemuck::cast_slice_mut(own) });
                rest = tail;
            }
        }
    }
    parts
}

/// The boxes of a piece of a tensor, in order.
fn boxes(prefix: &str, layout: &Layout, piece: &Piece) -> impl Iterator<Item = TensorBox> {
    let tensor = &layout.tensors()[piece.tensor];
    let name = name_in_checkpoint(prefix, &tensor.name);
    let elements = piece.flat.start - tensor.range.start..piece.flat.end - tensor.range.start;
    let shares = checkpoint::cut(&name, Dtype::F32, &tensor.shape, elements);
    shares.into_iter().map(|share| share.tensor)
}
