//! Constants of cuDNN that are used, as in `cudnn_graph.h` of 9.28.

use std::ffi::c_int;

/// Kind of a descriptor: `cudnnBackendDescriptorType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(pub(super) c_int);

#[allow(missing_docs, reason = "the names are cuDNN's")]
impl Kind {
    pub const ENGINE: Self = Self(2);
    pub const ENGINE_CONFIGURATION: Self = Self(3);
    pub const ENGINE_HEURISTIC: Self = Self(4);
    pub const EXECUTION_PLAN: Self = Self(5);
    pub const KNOB_CHOICE: Self = Self(7);
    pub const OPERATION_GRAPH: Self = Self(15);
    pub const VARIANT_PACK: Self = Self(16);
    pub const TENSOR: Self = Self(17);
    pub const DEVICE_PROPERTIES: Self = Self(38);
    pub const SDPA_FORWARD: Self = Self(41);
    pub const SDPA_BACKWARD: Self = Self(43);
    pub const DIAGONAL_BAND_MASK: Self = Self(44);
}

/// `cudnnBackendAttributeName_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute(pub(super) c_int);

#[allow(missing_docs, reason = "the names are cuDNN's")]
impl Attribute {
    pub const ENGINE_HEURISTIC_MODE: Self = Self(200);
    pub const ENGINE_HEURISTIC_GRAPH: Self = Self(201);
    pub const ENGINE_HEURISTIC_RESULTS: Self = Self(202);
    pub const ENGINE_HEURISTIC_DEVICE_PROPERTIES: Self = Self(204);
    pub const ENGINE_CONFIGURATION_ENGINE: Self = Self(300);
    pub const ENGINE_CONFIGURATION_KNOB_CHOICES: Self = Self(302);
    pub const EXECUTION_PLAN_HANDLE: Self = Self(400);
    pub const EXECUTION_PLAN_ENGINE_CONFIGURATION: Self = Self(401);
    pub const EXECUTION_PLAN_WORKSPACE_BYTES: Self = Self(402);
    pub const EXECUTION_PLAN_DEVICE_PROPERTIES: Self = Self(407);
    pub const KNOB_CHOICE_TYPE: Self = Self(600);
    pub const KNOB_CHOICE_VALUE: Self = Self(601);
    pub const OPERATION_GRAPH_HANDLE: Self = Self(800);
    pub const OPERATION_GRAPH_OPERATIONS: Self = Self(801);
    pub const TENSOR_BYTE_ALIGNMENT: Self = Self(900);
    pub const TENSOR_DATA_TYPE: Self = Self(901);
    pub const TENSOR_DIMENSIONS: Self = Self(902);
    pub const TENSOR_STRIDES: Self = Self(903);
    pub const TENSOR_UNIQUE_ID: Self = Self(906);
    pub const TENSOR_IS_VIRTUAL: Self = Self(907);
    pub const TENSOR_IS_BY_VALUE: Self = Self(908);
    pub(super) const VARIANT_PACK_UNIQUE_IDS: Self = Self(1000);
    pub(super) const VARIANT_PACK_DATA_POINTERS: Self = Self(1001);
    pub(super) const VARIANT_PACK_WORKSPACE: Self = Self(1003);
    pub const ENGINE_OPERATION_GRAPH: Self = Self(1300);
    pub const ENGINE_GLOBAL_INDEX: Self = Self(1301);
    pub const ENGINE_DEVICE_PROPERTIES: Self = Self(1307);
    pub const DEVICE_PROPERTIES_JSON: Self = Self(2702);
    pub const SDPA_FORWARD_Q: Self = Self(2800);
    pub const SDPA_FORWARD_K: Self = Self(2801);
    pub const SDPA_FORWARD_V: Self = Self(2802);
    pub const SDPA_FORWARD_O: Self = Self(2803);
    pub const SDPA_FORWARD_STATS: Self = Self(2804);
    pub const SDPA_FORWARD_SCALE: Self = Self(2805);
    pub const SDPA_FORWARD_SUBGRAPH: Self = Self(2811);
    pub const SDPA_FORWARD_SUBGRAPH_INPUT: Self = Self(2812);
    pub const SDPA_FORWARD_SUBGRAPH_OUTPUT: Self = Self(2813);
    pub const SDPA_BACKWARD_Q: Self = Self(2851);
    pub const SDPA_BACKWARD_K: Self = Self(2852);
    pub const SDPA_BACKWARD_V: Self = Self(2853);
    pub const SDPA_BACKWARD_O: Self = Self(2854);
    pub const SDPA_BACKWARD_STATS: Self = Self(2855);
    pub const SDPA_BACKWARD_SCALE: Self = Self(2856);
    pub const SDPA_BACKWARD_DQ: Self = Self(2859);
    pub const SDPA_BACKWARD_DK: Self = Self(2860);
    pub const SDPA_BACKWARD_DV: Self = Self(2861);
    pub const SDPA_BACKWARD_DO: Self = Self(2862);
    pub const SDPA_BACKWARD_SUBGRAPH: Self = Self(2867);
    pub const SDPA_BACKWARD_SUBGRAPH_INPUT: Self = Self(2868);
    pub const SDPA_BACKWARD_SUBGRAPH_OUTPUT: Self = Self(2869);
    pub const DIAGONAL_BAND_MASK_X: Self = Self(3000);
    pub const DIAGONAL_BAND_MASK_B: Self = Self(3005);
    pub const DIAGONAL_BAND_MASK_Y: Self = Self(3006);
    pub const DIAGONAL_BAND_MASK_COMPARISON: Self = Self(3007);
}

/// The type of an attribute's elements: `cudnnBackendAttributeType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ElementType(pub(super) c_int);

impl ElementType {
    pub(super) const HANDLE: Self = Self(0);
    pub(super) const DATA_TYPE: Self = Self(1);
    pub(super) const BOOLEAN: Self = Self(2);
    pub(super) const INT64: Self = Self(3);
    pub(super) const VOID_POINTER: Self = Self(6);
    pub(super) const HEURISTIC_MODE: Self = Self(8);
    pub(super) const KNOB_TYPE: Self = Self(9);
    pub(super) const COMPARISON_MODE: Self = Self(14);
    pub(super) const DESCRIPTOR: Self = Self(15);
    pub(super) const CHAR: Self = Self(24);
}

/// The element of a tensor: `cudnnDataType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType(pub(super) c_int);

impl DataType {
    /// f32.
    pub const F32: Self = Self(0);
    /// bf16.
    pub const BF16: Self = Self(9);
}

/// Comparison of a query's position with a key's in a mask: `cudnnPointwiseMode_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComparisonMode(pub(super) c_int);

impl ComparisonMode {
    /// Scores stay where the position of the query is that of the key or later.
    pub const GREATER_OR_EQUAL: Self = Self(303);
}

/// Order in which engines are offered: `cudnnBackendHeurMode_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeuristicMode(pub(super) c_int);

impl HeuristicMode {
    /// Order by expected speed.
    pub const A: Self = Self(3);
}

/// Setting of an engine: `cudnnBackendKnobType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knob(pub(super) c_int);

#[allow(missing_docs, reason = "the names are cuDNN's")]
impl Knob {
    pub const STAGES: Self = Self(14);
    pub const KERNEL_CFG: Self = Self(24);
    pub const TILE_CGA_M: Self = Self(27);
    pub const STREAM_K: Self = Self(38);
    pub const TILE_M: Self = Self(40);
    pub const TILE_N: Self = Self(41);
}
