//! What the graph room hands out and takes in.
const std = @import("std");
const base = @import("base");

pub const Error = error{ Canceled, OutOfMemory, ThreadFailed };

/// The highest bit of a neighbor is a mark while building, so ids have 31 bits.
pub const vertices_max: u32 = 1 << 31;

/// Whether a kept neighbor hides a candidate from a target: `between` lies between the two, `distance` between target and
/// candidate. For squared distances if α·between < distance. Products are compared as −2·⟨x,y⟩, of either sign: there the
/// kept one must be nearer to the candidate than the target is by the same factor (ip-NSW keeps the same edges at α = 1).
pub inline fn hides(comptime Distances: type, alpha: f32, between: f32, distance: f32) bool {
    if (!is_product(Distances)) return alpha * between < distance;
    return between < if (distance < 0) alpha * distance else distance / alpha;
}

/// Whether this is the distance of a copy of the target: 0, or −2·|x|² of the candidate itself.
pub inline fn is_copy(comptime Distances: type, distances: *const Distances, candidate: u32, distance: f32) bool {
    return distance == if (is_product(Distances)) -2 * distances.norm2(candidate) else 0;
}

inline fn is_product(comptime Distances: type) bool {
    return @hasDecl(Distances, "is_product") and Distances.is_product;
}

pub const BuildOptions = struct {
    /// Most neighbors a vertex may have (R).
    degree: u32 = 48,
    /// Candidates kept while searching for a vertex's place (L).
    list_size: u32 = 100,
    /// A neighbor hides a candidate if α times their squared distance is below the candidate's own squared distance.
    alpha: f32 = 1.2,
    threads: u32 = 1,
    /// Threads run while processors have nothing else to do (workers.zig).
    gives_way: bool = false,
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
    /// Threads run while processors have nothing else to do (workers.zig).
    gives_way: bool = false,
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

    /// Without an edge.
    pub fn empty(allocator: std.mem.Allocator, n: u32, degree_max: u32) error{OutOfMemory}!Graph {
        const neighbors = try base.alloc_untouched(allocator, u32, @as(usize, n) * degree_max);
        errdefer base.free_untouched(allocator, neighbors);
        const degrees = try base.alloc_untouched(allocator, u16, n);
        @memset(degrees, 0);
        return .{ .n = n, .degree_max = degree_max, .neighbors = neighbors, .degrees = degrees, .entry = 0 };
    }

    pub fn deinit(self: *Graph, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.neighbors);
        base.free_untouched(allocator, self.degrees);
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
