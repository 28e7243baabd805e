//! The GPU of one build: it walks toward vertices that are to be linked, for one graph after the other (`graph.Walks`). Codes are
//! uploaded once, links before each batch; the followed vertices come back. A million lists of 32 links are 128 MB, a few
//! milliseconds of upload, so no list is kept in step with the graph. After a failure the GPU gets nothing more of the build, which
//! goes on without it.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const graph = @import("graph");
const layout = @import("layout.zig");
const driver = @import("driver.zig");
const assert = std.debug.assert;

pub const kernel_name = "velo_insert";

pub const Options = struct {
    degree: u32,
    list_size: u32,
    /// The host has memory for large batches.
    large: bool = true,

    /// Why no GPU walks for such a build; null where one does.
    pub fn obstacle(self: Options) ?[]const u8 {
        return if (self.list_size > layout.list_size_max) "its candidate lists are longer than kernels have them (build_list_size above 512)" else null;
    }

    /// The most vertices that a walk on the host follows (`graph.search.Scratch`).
    fn followed_max(self: Options) u32 {
        return 4 * @max(self.list_size, 16);
    }

    /// Vertices of a batch, at most.
    fn batch_max(self: Options) u32 {
        const followed_bytes: u32 = if (self.large) 128 << 20 else 16 << 20;
        return @min(1 << 15, followed_bytes / (self.followed_max() * @sizeOf(quant.Candidate)));
    }

    /// Device memory of walks over `n` vertices with codes of `dim` dimensions.
    fn bytes_of(self: Options, n: u64, dim: u32) u64 {
        var sum: u64 = 0;
        for (self.sizes_of(n, dim)) |size| sum += size;
        return sum;
    }

    fn sizes_of(self: Options, n: u64, dim: u32) [parts]u64 {
        const batch: u64 = self.batch_max();
        return .{
            n * dim + layout.code_padding,
            n * @sizeOf(layout.PairFactors),
            n * layout.link_stride_of(self.degree) * @sizeOf(u32),
            batch * @sizeOf(layout.Query),
            batch * self.followed_max() * @sizeOf(quant.Candidate),
            batch * @sizeOf(layout.Counters),
        };
    }
};

const Part = enum { codes, factors, links, heads, followed, counters };
const parts = std.meta.fields(Part).len;

comptime {
    assert(layout.code_padding == base.limits.code_padding); // `quant.BuildCodes.codes` is uploaded as it is
}

/// Lists that are converted and uploaded together.
const lists_together = 1 << 14;

pub const Linker = struct {
    allocator: std.mem.Allocator,
    card: *const driver.Card,
    function: driver.Function,
    options: Options,
    walks: ?Walks = null,
    batches: u64 = 0,
    vertices: u64 = 0,
    /// Time of copies and kernels.
    busy_us: u64 = 0,
    is_off: bool = false,
    failure: driver.Diagnostic = .{},

    /// `vertices` of the largest graph, over vectors of `dim` dimensions. An error for lack of memory names the needed and the free
    /// bytes.
    pub fn init(allocator: std.mem.Allocator, card: *const driver.Card, module: driver.Module, options: Options, vertices: u64, dim: u32, diagnostic: *driver.Diagnostic) driver.Error!Linker {
        try card.enter(diagnostic);
        defer card.leave();
        try card.require(options.bytes_of(vertices, quant.dim_code_of(dim)), "build", diagnostic);
        return .{ .allocator = allocator, .card = card, .function = try card.function(module, kernel_name, diagnostic), .options = options };
    }

    /// Walks for one graph, by the thread that builds it, until `end`; null where the GPU makes none.
    pub fn begin(context: *anyopaque, points: *const quant.BuildCodes, product: bool) ?graph.Walks {
        const self: *Linker = @ptrCast(@alignCast(context));
        if (self.is_off) return null;
        self.card.enter(&self.failure) catch {
            self.is_off = true;
            return null;
        };
        self.walks = Walks.init(self, points, product) catch |err| {
            if (err == error.OutOfMemory) self.failure.set("the operating system gave no memory for batches", .{});
            self.is_off = true;
            self.card.leave();
            return null;
        };
        return .{ .context = self, .most = self.options.batch_max(), .run = run, .followed = followed };
    }

    pub fn end(context: *anyopaque) void {
        const self: *Linker = @ptrCast(@alignCast(context));
        if (self.walks) |*walks| {
            walks.deinit(self.card);
            self.card.leave();
        }
        self.walks = null;
    }

    fn run(context: *anyopaque, so_far: *const graph.Graph, vertices: []const u32) bool {
        const self: *Linker = @ptrCast(@alignCast(context));
        const began = base.nowMicros();
        self.walks.?.walk(self, so_far, vertices) catch {
            self.is_off = true;
            return false;
        };
        self.busy_us += base.nowMicros() -| began;
        self.batches += 1;
        self.vertices += vertices.len;
        return true;
    }

    fn followed(context: *anyopaque, number: u32) []const quant.Candidate {
        const self: *Linker = @ptrCast(@alignCast(context));
        const walks = &self.walks.?;
        const each = walks.batch.followed_max;
        return walks.followed[@as(usize, number) * each ..][0..@min(walks.counters[number].expanded, each)];
    }
};

/// Of one graph.
const Walks = struct {
    arena: std.heap.ArenaAllocator,
    buffers: [parts]driver.Buffer,
    index: layout.Index,
    batch: layout.Batch,
    /// Lists of some vertices, on their way.
    links: []u32,
    heads: []layout.Query,
    followed: []quant.Candidate,
    counters: []layout.Counters,

    fn init(linker: *Linker, codes: *const quant.BuildCodes, product: bool) (driver.Error || error{OutOfMemory})!Walks {
        const card = linker.card;
        const options = linker.options;
        assert(options.list_size >= 1 and options.list_size <= layout.list_size_max);
        const stride = layout.link_stride_of(options.degree);
        const batch_max = options.batch_max();
        var buffers: [parts]driver.Buffer = @splat(.none);
        errdefer for (&buffers) |*buffer| card.free(buffer);
        for (options.sizes_of(codes.n, codes.dim), &buffers) |size, *buffer| buffer.* = try card.alloc(size, &linker.failure);
        try card.upload(buffers[@intFromEnum(Part.codes)], 0, codes.codes, null, &linker.failure);
        try card.upload(buffers[@intFromEnum(Part.factors)], 0, std.mem.sliceAsBytes(codes.factors), null, &linker.failure);
        try card.synchronize(null, &linker.failure);
        var arena: std.heap.ArenaAllocator = .init(linker.allocator);
        errdefer arena.deinit();
        const allocator = arena.allocator();
        const links = try allocator.alloc(u32, @as(usize, @min(codes.n, lists_together)) * stride);
        const heads = try allocator.alloc(layout.Query, batch_max);
        const followed = try allocator.alloc(quant.Candidate, @as(usize, batch_max) * options.followed_max());
        const counters = try allocator.alloc(layout.Counters, batch_max);
        return .{
            .arena = arena,
            .buffers = buffers,
            .index = .{
                .codes = buffers[@intFromEnum(Part.codes)].address,
                .factors = buffers[@intFromEnum(Part.factors)].address,
                .links = buffers[@intFromEnum(Part.links)].address,
                .n = codes.n,
                .dim = codes.dim,
                .bits = quant.BuildCodes.bits,
                .code_stride = codes.dim,
                .link_stride = stride,
                .entry_vertex = 0,
                .product = @intFromBool(product),
            },
            .batch = .{
                .queries = buffers[@intFromEnum(Part.heads)].address,
                .counters = buffers[@intFromEnum(Part.counters)].address,
                .count = 0,
                .list_size = options.list_size,
                .visited_slots = layout.visited_slots_of(options.list_size),
                .followed = buffers[@intFromEnum(Part.followed)].address,
                .followed_max = options.followed_max(),
            },
            .links = links,
            .heads = heads,
            .followed = followed,
            .counters = counters,
        };
    }

    fn deinit(self: *Walks, card: *const driver.Card) void {
        for (&self.buffers) |*buffer| card.free(buffer);
        self.arena.deinit();
    }

    fn walk(self: *Walks, linker: *Linker, so_far: *const graph.Graph, vertices: []const u32) driver.Error!void {
        const card = linker.card;
        const failure = &linker.failure;
        const count = vertices.len;
        assert(so_far.n == self.index.n and count <= self.heads.len);
        try self.upload_links(linker, so_far);
        for (self.heads[0..count], vertices) |*head, vertex| head.* = .{ .scale = 0, .bias = 0, .excluded = vertex };
        try card.upload(self.buffers[@intFromEnum(Part.heads)], 0, std.mem.sliceAsBytes(self.heads[0..count]), null, failure);
        self.index.entry_vertex = so_far.entry;
        self.batch.count = @intCast(count);
        try card.launch_batch(linker.function, self.index, self.batch, null, failure);
        try card.download(std.mem.sliceAsBytes(self.counters[0..count]), self.buffers[@intFromEnum(Part.counters)], null, failure);
        try card.download(std.mem.sliceAsBytes(self.followed[0 .. count * self.batch.followed_max]), self.buffers[@intFromEnum(Part.followed)], null, failure);
        try card.synchronize(null, failure);
    }

    fn upload_links(self: *Walks, linker: *Linker, so_far: *const graph.Graph) driver.Error!void {
        const stride = self.index.link_stride;
        var first: u32 = 0;
        while (first < so_far.n) : (first += lists_together) {
            const count = @min(lists_together, so_far.n - first);
            const rows = self.links[0 .. @as(usize, count) * stride];
            @memset(rows, layout.none);
            for (0..count) |i| {
                const list = so_far.list(@intCast(first + i));
                for (list, rows[i * stride ..][0..list.len]) |id, *link| link.* = id & ~graph.Graph.mark;
            }
            const offset = @as(u64, first) * stride * @sizeOf(u32);
            try linker.card.upload(self.buffers[@intFromEnum(Part.links)], offset, std.mem.sliceAsBytes(rows), null, &linker.failure);
            try linker.card.synchronize(null, &linker.failure);
        }
    }
};
