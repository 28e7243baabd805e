//! What the graph room hands out and takes in.
const std = @import("std");

pub const Error = error{ Canceled, OutOfMemory, ThreadFailed };

/// The highest bit of a neighbor is a mark while building, so ids have 31 bits.
pub const vertices_max: u32 = 1 << 31;

pub const BuildOptions = struct {
    /// Most neighbors a vertex may have (R).
    degree: u32 = 48,
    /// Candidates kept while searching for a vertex's place (L).
    list_size: u32 = 100,
    /// A neighbor hides a candidate if α times their squared distance is below the candidate's own squared distance.
    alpha: f32 = 1.2,
    threads: u32 = 1,
    seed: u64 = 0,
    /// Where searches start; without it the medoid of a sample.
    entry: ?u32 = null,
    /// Inserted vertices are added to it, n in all.
    progress: ?*std.atomic.Value(u64) = null,
    /// Once true, the build stops with `error.Canceled`.
    cancel: ?*const std.atomic.Value(bool) = null,
};

pub const PlaceOptions = struct {
    /// Bytes of a page that records may fill.
    page_bytes_budget: u32,
    /// What each record (by build id) takes of that budget, its slot included.
    record_bytes: []const u16,
    /// Leave out what only makes pages better: for a first placement, after which record sizes are known.
    draft: bool = false,
    threads: u32 = 1,
    /// Placed vertices are added to it, n in all.
    progress: ?*std.atomic.Value(u64) = null,
    cancel: ?*const std.atomic.Value(bool) = null,
};

/// A directed graph with at most `degree_max` neighbors a vertex.
pub const Graph = struct {
    n: u32,
    degree_max: u32,
    /// n rows of `degree_max` places, of which the first `degrees[v]` count; those that serve navigation over few links first (prune.zig).
    neighbors: []u32,
    degrees: []u16,
    /// Where a search starts.
    entry: u32,

    pub fn deinit(self: *Graph, allocator: std.mem.Allocator) void {
        allocator.free(self.neighbors);
        allocator.free(self.degrees);
        self.* = undefined;
    }

    pub fn list(self: *const Graph, vertex: u32) []u32 {
        const start = @as(usize, vertex) * self.degree_max;
        return self.neighbors[start..][0..self.degrees[vertex]];
    }

    /// All places of a vertex, used or not.
    pub fn row(self: *const Graph, vertex: u32) []u32 {
        return self.neighbors[@as(usize, vertex) * self.degree_max ..][0..self.degree_max];
    }
};
