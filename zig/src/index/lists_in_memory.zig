//! Lists of links for memory, made of those of links.bin as an index is opened: shorter ones (trim.zig), or ones that
//! vertices share (page_ways.zig). Those say which links a list has; here several threads encode them, each a run of lists
//! into a heap of its own, and the heaps are laid end to end.
//!
//! A chooser is `Chooser.init(allocator, source)`, one a thread. Of its source, `first(list)` is the vertex that the gaps of a
//! list begin at, and the first whose links it takes. `of(list, most)` are its links, ascending, at most so many; where they
//! take too many bytes, `given_up` fewer are asked for.
const std = @import("std");
const layout = @import("layout");
const base = @import("base");
const Links = layout.links.Links;
const adjacency = layout.adjacency;

const sample_max = 4096;
/// So many vertices are passed before what their lists took is released: about a megabyte.
const release_vertices = 1024 * layout.links.group_size;
const release_bytes = 1 << 20;

pub const Error = error{ OutOfMemory, BadList };

/// Called with parts of memory that have been read and are not needed soon, if ever.
pub const Release = *const fn (part: []const u8) void;

pub const Made = struct { links: Links, memory: base.AlignedBytes };

/// The links of vertices as built, and the tiers of links.bin.
pub const Built = struct {
    links: *const Links,
    tiers: []const u8,
    /// Links of a vertex at most.
    most: u32,
    release: Release,

    /// The tiers of a vertex that has these links.
    pub fn tiers_of(self: *const Built, vertex: u32, ids: []const u32) error{BadList}![]const u8 {
        const stride = layout.links.tier_bytes(self.most);
        const tiers = self.tiers[@as(usize, vertex) * stride ..][0..stride];
        if (ids.len > self.most or layout.links.tier_bytes(@intCast(ids.len)) > tiers.len) return error.BadList;
        return tiers;
    }

    pub fn decode(self: *const Built, vertex: u32, buffer: *[adjacency.neighbors_max]u32) error{BadList}![]u32 {
        return self.links.decode(vertex, buffer) catch error.BadList;
    }
};

/// Consumes nothing: the links as built stay valid.
pub fn make(comptime Chooser: type, allocator: std.mem.Allocator, source: *const Chooser.Source, list_count: u32, threads: u32) Error!Made {
    const built = &source.built;
    const codec = try trained(Chooser, allocator, source, list_count);

    const groups = layout.links.group_count(list_count);
    const thread_count = @max(1, @min(threads, groups / 1024 + 1));
    const runs = try allocator.alloc(Run(Chooser), thread_count);
    defer allocator.free(runs);
    var started: usize = 0;
    defer for (runs[0..started]) |*run| run.heap.deinit(std.heap.page_allocator);
    const lengths = try base.alloc_untouched(allocator, u8, @as(usize, groups) * layout.links.group_size);
    defer base.free_untouched(allocator, lengths);
    @memset(lengths, 0);
    for (runs, 0..) |*run, i| {
        run.* = .{
            .source = source,
            .codec = &codec,
            .lengths = lengths,
            .begin = @intCast(@as(u64, groups) * i / thread_count * layout.links.group_size),
            .end = @min(list_count, @as(u32, @intCast(@as(u64, groups) * (i + 1) / thread_count * layout.links.group_size))),
        };
        started += 1;
    }
    for (runs[1..]) |*run| run.thread = std.Thread.spawn(.{}, Run(Chooser).encode, .{run}) catch null;
    runs[0].encode();
    for (runs[1..]) |*run| if (run.thread) |thread| thread.join() else run.encode();
    var heap_bytes: u64 = adjacency.over_read_bytes;
    for (runs) |*run| {
        if (run.failure) |failure| return failure;
        heap_bytes += run.heap.items.len;
    }

    const group_bytes = (@as(usize, groups) + 1) * 8;
    const memory = try base.AlignedBytes.alloc(@intCast(group_bytes + lengths.len + heap_bytes), .{ .huge_pages = true });
    const out_groups: []u64 = @alignCast(std.mem.bytesAsSlice(u64, memory.bytes[0..group_bytes]));
    const out_lengths = memory.bytes[group_bytes..][0..lengths.len];
    @memcpy(out_lengths, lengths);
    const heap = memory.bytes[group_bytes + lengths.len ..];
    var at: usize = 0;
    for (runs) |*run| {
        var rest = run.heap.items;
        while (rest.len > 0) {
            const piece = rest[0..@min(rest.len, release_bytes)];
            @memcpy(heap[at..][0..piece.len], piece);
            built.release(piece);
            at += piece.len;
            rest = rest[piece.len..];
        }
        run.heap.clearAndFree(std.heap.page_allocator);
    }
    var begin: u64 = 0;
    for (out_groups[0..groups], 0..) |*group, i| {
        group.* = begin;
        for (lengths[i * layout.links.group_size ..][0..layout.links.group_size]) |length| begin += length;
    }
    out_groups[groups] = begin;
    return .{ .memory = memory, .links = .{ .n = list_count, .codec = codec, .groups = out_groups, .lengths = out_lengths, .heap = heap } };
}

/// The gaps of other lists are other gaps: their code is trained on a sample.
fn trained(comptime Chooser: type, allocator: std.mem.Allocator, source: *const Chooser.Source, list_count: u32) Error!adjacency.Codec {
    var chooser = try Chooser.init(allocator, source);
    defer chooser.deinit(allocator);
    var statistics: adjacency.Codec.Statistics = .{};
    var passed: Passed = .{ .built = &source.built };
    const stride = @max(1, list_count / sample_max);
    var list: u32 = 0;
    while (list < list_count) : (list += stride) {
        passed.at(source.first(list)); // around what is read of a mapped file the system brings more
        statistics.count(source.first(list), try chooser.of(list, adjacency.neighbors_max));
    }
    passed.up_to(source.built.links.n);
    return adjacency.Codec.train(&statistics);
}

/// What one thread encodes.
fn Run(comptime Chooser: type) type {
    return struct {
        source: *const Chooser.Source,
        codec: *const adjacency.Codec,
        lengths: []u8,
        begin: u32,
        end: u32,
        heap: std.ArrayList(u8) = .empty,
        failure: ?Error = null,
        thread: ?std.Thread = null,

        const Self = @This();

        fn encode(self: *Self) void {
            self.encode_lists() catch |err| {
                self.failure = err;
            };
        }

        fn encode_lists(self: *Self) Error!void {
            var chooser = try Chooser.init(std.heap.page_allocator, self.source);
            defer chooser.deinit(std.heap.page_allocator);
            const begin = self.source.first(self.begin) / layout.links.group_size * layout.links.group_size;
            var passed: Passed = .{ .built = &self.source.built, .begin = begin };
            for (self.begin..self.end) |number| {
                const list: u32 = @intCast(number);
                const first = self.source.first(list);
                passed.at(first);
                var ids = try chooser.of(list, adjacency.neighbors_max);
                while (self.codec.encoded_bytes(first, ids) > layout.links.list_bytes_max) ids = try chooser.of(list, @intCast(ids.len -| Chooser.given_up));
                const out = try self.heap.addManyAsSlice(std.heap.page_allocator, self.codec.encoded_bytes(first, ids));
                self.lengths[list] = @intCast(self.codec.encode(first, ids, out));
            }
        }
    };
}

/// Releases lists and tiers that have been read.
const Passed = struct {
    built: *const Built,
    /// Vertices before this one are released; the first of a group.
    begin: u32 = 0,

    fn at(self: *Passed, vertex: u32) void {
        if (vertex - self.begin >= release_vertices) self.up_to(vertex / layout.links.group_size * layout.links.group_size);
    }

    fn up_to(self: *Passed, end: u32) void {
        const links = self.built.links;
        const heap_begin = links.groups[self.begin / layout.links.group_size];
        const heap_end = links.groups[std.math.divCeil(u32, end, layout.links.group_size) catch unreachable];
        self.built.release(links.heap[@intCast(heap_begin)..@intCast(heap_end)]);
        const stride = layout.links.tier_bytes(self.built.most);
        self.built.release(self.built.tiers[@as(usize, self.begin) * stride .. @as(usize, end) * stride]);
        self.begin = end;
    }
};
