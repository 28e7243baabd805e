//! Walks of a build on a card (`graph.Walks`): codes are uploaded once, links before each batch, and the followed vertices come back.
//! A million lists of 32 links are 128 MB, a few milliseconds of upload; nothing is kept in step row by row.
const std = @import("std");
const quant = @import("quant");
const graph = @import("graph");
const layout = @import("layout.zig");
const assert = std.debug.assert;

pub const Options = struct {
    degree: u32,
    list_size: u32,
    product: bool = false,
    /// Vertices of a batch, at most.
    most: u32 = 1 << 15,

    /// The most vertices that a walk on the host follows (`graph.search.Scratch`).
    pub fn followed_max(self: Options) u32 {
        return 4 * @max(self.list_size, 16);
    }
};

/// Device memory of walks over `n` vertices with codes of `dim` dimensions.
pub fn bytes_of(n: u64, dim: u32, options: Options) u64 {
    const vertex_bytes = @as(u64, dim) + @sizeOf(layout.PairFactors) + @as(u64, layout.link_stride_of(options.degree)) * @sizeOf(u32);
    const walk_bytes = @sizeOf(layout.Query) + @sizeOf(layout.Counters) + @as(u64, options.followed_max()) * @sizeOf(quant.Candidate);
    return n * vertex_bytes + layout.code_padding + options.most * walk_bytes;
}

/// `Card` has `alloc(bytes) !address`, `free(address)`, `upload(address, bytes) !void`, `download(bytes, address) !void`, and
/// `walk(layout.Index, layout.Batch) !void`, which runs `velo_insert` to its end.
pub fn Walks(comptime Card: type) type {
    return struct {
        card: *Card,
        options: Options,
        index: layout.Index,
        batch: layout.Batch,
        /// Lists of some vertices, on their way.
        links: []u32,
        heads: []layout.Query,
        followed: []quant.Candidate,
        counters: []layout.Counters,

        const Self = @This();

        /// Lists that are converted and uploaded together.
        const lists_together = 1 << 14;

        pub fn init(allocator: std.mem.Allocator, card: *Card, codes: *const quant.BuildCodes, options: Options) !Self {
            assert(options.list_size >= 1 and options.list_size <= layout.list_size_max);
            const n = codes.n;
            const stride = layout.link_stride_of(options.degree);
            const links = try allocator.alloc(u32, @as(usize, @min(n, lists_together)) * stride);
            errdefer allocator.free(links);
            const heads = try allocator.alloc(layout.Query, options.most);
            errdefer allocator.free(heads);
            const followed = try allocator.alloc(quant.Candidate, @as(usize, options.most) * options.followed_max());
            errdefer allocator.free(followed);
            const counters = try allocator.alloc(layout.Counters, options.most);
            errdefer allocator.free(counters);

            const codes_at = try card.alloc(codes.codes.len);
            errdefer card.free(codes_at);
            const factors_at = try card.alloc(std.mem.sliceAsBytes(codes.factors).len);
            errdefer card.free(factors_at);
            const links_at = try card.alloc(@as(u64, n) * stride * @sizeOf(u32));
            errdefer card.free(links_at);
            const heads_at = try card.alloc(std.mem.sliceAsBytes(heads).len);
            errdefer card.free(heads_at);
            const followed_at = try card.alloc(std.mem.sliceAsBytes(followed).len);
            errdefer card.free(followed_at);
            const counters_at = try card.alloc(std.mem.sliceAsBytes(counters).len);
            errdefer card.free(counters_at);
            try card.upload(codes_at, codes.codes);
            try card.upload(factors_at, std.mem.sliceAsBytes(codes.factors));
            return .{
                .card = card,
                .options = options,
                .index = .{
                    .codes = codes_at,
                    .factors = factors_at,
                    .center_ids = 0,
                    .links = links_at,
                    .entries = 0,
                    .entry_starts = 0,
                    .center_norms2 = 0,
                    .n = n,
                    .dim = codes.dim,
                    .bits = quant.BuildCodes.bits,
                    .code_stride = codes.dim,
                    .link_stride = stride,
                    .center_count = 0,
                    .entry_vertex = 0,
                    .product = @intFromBool(options.product),
                },
                .batch = .{
                    .queries = heads_at,
                    .planes = 0,
                    .terms = 0,
                    .candidates = 0,
                    .counters = counters_at,
                    .count = 0,
                    .list_size = options.list_size,
                    .visited_slots = layout.visited_slots_of(options.list_size),
                    .followed = followed_at,
                    .followed_max = options.followed_max(),
                },
                .links = links,
                .heads = heads,
                .followed = followed,
                .counters = counters,
            };
        }

        pub fn deinit(self: *Self, allocator: std.mem.Allocator) void {
            for ([_]u64{ self.index.codes, self.index.factors, self.index.links, self.batch.queries, self.batch.followed, self.batch.counters }) |address| self.card.free(address);
            allocator.free(self.links);
            allocator.free(self.heads);
            allocator.free(self.followed);
            allocator.free(self.counters);
            self.* = undefined;
        }

        /// Valid as long as `self`.
        pub fn walks(self: *Self) graph.Walks {
            return .{ .context = self, .most = self.options.most, .run = run, .followed = followed_by };
        }

        fn run(context: *anyopaque, so_far: *const graph.Graph, vertices: []const u32) bool {
            const self: *Self = @ptrCast(@alignCast(context));
            self.walk(so_far, vertices) catch return false;
            return true;
        }

        fn walk(self: *Self, so_far: *const graph.Graph, vertices: []const u32) !void {
            assert(so_far.n == self.index.n and vertices.len <= self.options.most);
            try self.upload_links(so_far);
            for (self.heads[0..vertices.len], vertices) |*head, vertex| head.* = .{ .scale = 0, .bias = 0, .excluded = vertex };
            try self.card.upload(self.batch.queries, std.mem.sliceAsBytes(self.heads[0..vertices.len]));
            self.index.entry_vertex = so_far.entry;
            self.batch.count = @intCast(vertices.len);
            try self.card.walk(self.index, self.batch);
            try self.card.download(std.mem.sliceAsBytes(self.counters[0..vertices.len]), self.batch.counters);
            try self.card.download(std.mem.sliceAsBytes(self.followed[0 .. vertices.len * self.batch.followed_max]), self.batch.followed);
        }

        fn upload_links(self: *Self, so_far: *const graph.Graph) !void {
            const stride = self.index.link_stride;
            var first: u32 = 0;
            while (first < so_far.n) {
                const count = @min(lists_together, so_far.n - first);
                const rows = self.links[0 .. @as(usize, count) * stride];
                @memset(rows, layout.none);
                for (0..count) |i| {
                    const list = so_far.list(@intCast(first + i));
                    for (list, rows[i * stride ..][0..list.len]) |id, *link| link.* = id & ~graph.Graph.mark;
                }
                try self.card.upload(self.index.links + @as(u64, first) * stride * @sizeOf(u32), std.mem.sliceAsBytes(rows));
                first += count;
            }
        }

        fn followed_by(context: *anyopaque, number: u32) []const quant.Candidate {
            const self: *Self = @ptrCast(@alignCast(context));
            const each = self.batch.followed_max;
            return self.followed[@as(usize, number) * each ..][0..@min(self.counters[number].expanded, each)];
        }
    };
}
