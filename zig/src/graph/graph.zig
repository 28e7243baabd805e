//! The graph room: builds a Vamana graph over distances it is handed, keeps it connected, chooses entry points and
//! decides which vertices share a page. It is generic over the distances: anything with
//!
//!     n: u32,
//!     pub fn distance(self: *const Distances, a: u32, b: u32) f32
//!     pub fn distances(self: *const Distances, from: u32, ids: []const u32, out: []f32) void
//!
//! serves, as long as distances are finite and symmetric. `quant.BuildCodes` is what an index is built with.
const std = @import("std");

const types = @import("types.zig");
const vamana = @import("vamana.zig");
const connectivity = @import("connect.zig");
const placement = @import("placement.zig");

pub const BuildOptions = types.BuildOptions;
pub const Walks = types.Walks;
pub const PlaceOptions = types.PlaceOptions;
pub const Graph = types.Graph;
pub const Error = types.Error;
pub const vertices_max = types.vertices_max;
pub const build = vamana.build;
pub const build_kept = vamana.build_kept;
pub const build_from = vamana.build_from;
pub const InitialGraph = @import("initial.zig").InitialGraph;
pub const Insertion = types.Insertion;
pub const connect = connectivity.connect;
pub const reachable_count = connectivity.reachable_count;
pub const medoid = connectivity.medoid;
pub const entry_points = connectivity.entry_points;
pub const entry_count = connectivity.entry_count;
pub const Placement = types.Placement;
pub const place = placement.place;
pub const inverse_of = types.inverse_of;
pub const remap = placement.remap;
pub const color = placement.color;
pub const affinity_threshold = placement.affinity_threshold;
pub const search = @import("search.zig");

test {
    std.testing.refAllDecls(@This());
    _ = @import("build_test.zig");
    _ = @import("place_test.zig");
    _ = @import("initial_test.zig");
}
