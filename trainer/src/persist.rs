//! Between the flat buffers of training and the named boxes of a checkpoint.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use checkpoint::{Dtype, Part, PartMut, Peers, PeersError, Share, TensorBox};
use collectives::Collective;
use models::Layout;

use crate::state::State;

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

/// This rank's share of the state: ranks hold the same, so each writes a part of it once.
pub(crate) fn share<'state>(
    state: &'state State,
    layout: &Layout,
    world: usize,
    rank: usize,
) -> Vec<Part<'state>> {
    let mut names = Vec::new();
    let mut sources = Vec::new();
    for (prefix, buffer) in state.buffers() {
        for tensor in layout.tensors() {
            names.push((name_in_checkpoint(prefix, &tensor.name), tensor.shape.clone()));
            sources.push(&buffer[tensor.range.clone()]);
        }
    }
    let mut parts = Vec::new();
    for Share { tensor, elements } in checkpoint::divide(&names, world, rank) {
        let index = names.iter().position(|(name, _)| *name == tensor.name);
        let source = sources[index.expect("divide gives boxes of the tensors it was given")];
        parts.push(Part { data: bytemuck::cast_slice(&source[elements]), tensor });
    }
    parts
}

/// The whole state, to be filled from a checkpoint.
pub(crate) fn whole<'state>(state: &'state mut State, layout: &Layout) -> Vec<PartMut<'state>> {
    let mut parts = Vec::new();
    for (prefix, buffer) in state.buffers_mut() {
        let (mut rest, mut position) = (buffer, 0);
        for tensor in layout.tensors() {
            let (_, tail) = rest.split_at_mut(tensor.range.start - position);
            let (data, tail) = tail.split_at_mut(tensor.range.len());
            (rest, position) = (tail, tensor.range.end);
            let name = name_in_checkpoint(prefix, &tensor.name);
            let tensor = TensorBox::whole(&name, Dtype::F32, &tensor.shape);
            parts.push(PartMut { tensor, data: bytemuck::cast_slice_mut(data) });
        }
    }
    parts
}
