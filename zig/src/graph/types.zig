//! Inputs and outputs of the graph room.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");

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
    /// The start of searches; without it the medoid of a sample.
    entry: ?u32 = null,
    /// Inserted vertices are added to it, n in all.
    progress: ?*std.atomic.Value(u64) = null,
    /// Once true, the build stops with `error.Canceled`.
    cancel: ?*const std.atomic.Value(bool) = null,
    /// Walks for many vertices at once; not of a build from a former graph.
    walks: ?Walks = null,
};

/// Walks over the graph so far, made by another device. Vertices of one batch do not find each other.
pub const Walks = struct {
    context: *anyopaque,
    /// Vertices of a batch, at most.
    most: u32,
    /// Walks from the graph's entry toward each of `vertices`. Lists are `graph.degrees` long; `Graph.mark` may be set in neighbors.
    /// False where the device fails: the build goes on without it.
    run: *const fn (context: *anyopaque, graph: *const Graph, vertices: []const u32) bool,
    /// Vertices that the walk toward vertex number `number` of these followed, with distances, in any order. Threads ask at once.
    followed: *const fn (context: *anyopaque, number: u32) []const quant.Candidate,
};

pub const PlaceOptions = struct {
    /// Bytes of a page that records may fill.
    page_bytes_budget: u32,
    /// Bytes of each record (by build id) of that budget, its slot included.
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
    /// n rows of `degree_max` places, the first `degrees[v]` of them in use; those that serve navigation over few links first (prune.zig).
    neighbors: []u32,
    degrees: []u16,
    /// The start of searches.
    entry: u32,

    /// A newcomer to its list, while the graph is built.
    pub const mark: u32 = vertices_max;

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

pub const Placement = struct {
    /// `order[new id] = old id`.
    order: []u32,
    /// First new id of every page, ascending, beginning with 0.
    page_first: []u32,

    pub fn deinit(self: *Placement, allocator: std.mem.Allocator) void {
        base.free_untouched(allocator, self.order);
        base.free_untouched(allocator, self.page_first);
        self.* = undefined;
    }

    /// New ids on a page, half open.
    pub fn page(self: *const Placement, index: usize) struct { from: u32, to: u32 } {
        const to = if (index + 1 < self.page_first.len) self.page_first[index + 1] else @as(u32, @intCast(self.order.len));
        return .{ .from = self.page_first[index], .to = to };
    }

    /// `inverse[old id] = new id`.
    pub fn inverse(self: *const Placement, allocator: std.mem.Allocator) error{OutOfMemory}![]u32 {
        return inverse_of(allocator, self.order);
    }
};

/// `inverse[order[i]] = i`.
pub fn inverse_of(allocator: std.mem.Allocator, order: []const u32) error{OutOfMemory}![]u32 {
    const places = try base.alloc_untouched(allocator, u32, order.len);
    for (order, 0..) |old, new| places[old] = @intCast(new);
    return places;
}

/// Insertion between two rounds, while no thread is at work: all that a later process needs to go on.
pub const Insertion = struct {
    graph: *Graph,
    /// All vertices in the order in which they are inserted.
    order: []u32,
    /// Of every vertex; infinite for one without a full list (see `Builder.radii`).
    radii: []f32,
    /// So many of `order` are in the graph; the lists of all others are empty.
    inserted: u32,
};

// ---- origins ----
//
// One vertex from which distances to many are asked. Distances that offer a prepared form (`Plane`, `prepare`,
// `distances_prepared`, as `quant.BuildCodes` does) are used through it; others are called with the vertex's id.

pub fn Origin(comptime Distances: type) type {
    const prepared = @hasDecl(Distances, "Plane");
    return struct {
        const Self = @This();

        vertex: u32 = 0,
        plane: if (prepared) Distances.Plane else void,

        pub fn init(allocator: std.mem.Allocator, distances: *const Distances) error{OutOfMemory}!Self {
            return .{ .plane = if (prepared) try .init(allocator, distances.dim) else {} };
        }

        pub fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            if (prepared) self.plane.deinit(allocator);
        }

        pub inline fn set(self: *Self, distances: *const Distances, vertex: u32) void {
            self.vertex = vertex;
            if (prepared) distances.prepare(vertex, &self.plane);
        }

        pub inline fn measure(self: *const Self, distances: *const Distances, ids: []const u32, out: []f32) void {
            if (ids.len == 0) return;
            if (prepared) distances.distances_prepared(&self.plane, ids, out) else distances.distances(self.vertex, ids, out);
        }
    };
}
