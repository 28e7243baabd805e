//! Shared links: where memory has no room for eight links a vertex, a stretch of vertices in placement order keeps one
//! list for all of them. A search that follows a vertex then looks at the codes of its whole page, which lie side by side,
//! and at what the list of its stretch leads to. So a list names no vertex of the pages that the stretch lies on, and of
//! any other page one at most. Of all pages that links of the stretch lead to it names those that most lead to, the first
//! links of pruning's order counting more.
//!
//! The lists are made of links.bin as an index is opened, and lie in memory as links of vertices do (layout/links.zig).
//! docs/decisions/0016 has what they take and find.
const std = @import("std");
const layout = @import("layout");
const base = @import("base");
const Links = layout.links.Links;
const Directory = layout.page_starts.Directory;
const adjacency = layout.adjacency;
const assert = std.debug.assert;

/// How many vertices share how many links; a list that would grow too long has fewer.
pub const Shape = struct {
    stretch: u32,
    links: u32,

    /// What an index with such lists says of how many links a vertex it keeps.
    pub fn kept(shape: Shape) u32 {
        return shape.links / shape.stretch;
    }

    fn lists(shape: Shape, vertices: u32) u32 {
        return (vertices + shape.stretch - 1) / shape.stretch;
    }
};

/// The most memory first. A stretch of 40 is about a page of 128 dimensions.
pub const shapes = [_]Shape{ .{ .stretch = 5, .links = 32 }, .{ .stretch = 10, .links = 48 }, .{ .stretch = 40, .links = 96 } };

/// Of fewer links a vertex a list would be too short.
pub const built_min = layout.links.tier_bounds[0];
/// Later links of long lists hardly ever lead elsewhere.
const tiers_looked_at = 5;
const links_max = 96;

comptime {
    for (shapes) |shape| std.debug.assert(shape.links <= links_max and shape.kept() < built_min);
}

/// The shape that an index says so much of; null where that many are links of vertices.
pub fn shape_of(kept: u32) ?Shape {
    for (shapes) |shape| if (shape.kept() == kept) return shape;
    return null;
}
/// What a list gives up at a time where it is too long.
const links_given_up = 8;
const sample_max = 2048;
/// So many vertices are passed before what their lists took is released: about a megabyte.
const release_vertices = 1024 * layout.links.group_size;

pub const Error = error{ OutOfMemory, BadList };

/// Called with parts of memory that have been read and are not needed soon, if ever.
pub const Release = *const fn (part: []const u8) void;

pub const PageWays = struct {
    /// A list a stretch; ids are vertices.
    lists: Links,
    memory: base.AlignedBytes,
    vertices: u32,
    shape: Shape,

    pub fn deinit(self: *PageWays) void {
        self.memory.free();
    }

    pub inline fn stretch_of(self: *const PageWays, vertex: u32) u32 {
        return vertex / self.shape.stretch;
    }

    /// Where the list of a stretch leads.
    pub inline fn decode(self: *const PageWays, stretch: u32, out: []u32) error{BadList}![]u32 {
        const list = self.lists.list(stretch);
        return self.lists.codec.decode(stretch * self.shape.stretch, list.bytes, list.length, self.vertices, out) catch return error.BadList;
    }

    pub fn memory_bytes(self: *const PageWays) u64 {
        return self.memory.bytes.len;
    }
};

/// What the lists of so many vertices take, a little more than less. Targets of a list lie in few regions, so a gap takes
/// fewer bits than one of targets drawn evenly would.
pub fn estimate_bytes(shape: Shape, vertices: u32) u64 {
    const links: f64 = @floatFromInt(@min(shape.links, vertices));
    const gap_bits = 3.0 + 0.75 * @log2(@max(1, @as(f64, @floatFromInt(vertices)) / @max(1, links)));
    const list = @min(@as(f64, layout.links.list_bytes_max), 3 + links * gap_bits / 8);
    const lists = shape.lists(vertices);
    const groups: u64 = layout.links.group_count(lists) + 1;
    return groups * (8 + layout.links.group_size) + @as(u64, @intFromFloat(@as(f64, @floatFromInt(lists)) * list)) + 64;
}

/// From the links of vertices, and the tiers of links.bin. Consumes nothing.
pub fn make(
    allocator: std.mem.Allocator,
    links: *const Links,
    tiers: []const u8,
    built: u32,
    directory: *const Directory,
    shape: Shape,
    threads: u32,
    release: Release,
) Error!PageWays {
    assert(built >= built_min and links.n == directory.n);
    const list_count = shape.lists(links.n);
    const source: Source = .{ .links = links, .tiers = tiers, .stride = layout.links.tier_bytes(built), .built = built, .directory = directory, .shape = shape, .release = release };
    const codec = codec: {
        var choice = try Choice.init(allocator, &source);
        defer choice.deinit(allocator);
        var statistics: adjacency.Codec.Statistics = .{};
        const stride = @max(1, list_count / sample_max);
        var stretch: u32 = 0;
        while (stretch < list_count) : (stretch += stride) statistics.count(source.first(stretch), try choice.of(stretch, shape.links));
        source.forget(0, links.n);
        break :codec adjacency.Codec.train(&statistics);
    };

    const groups = layout.links.group_count(list_count);
    const lengths = try base.alloc_untouched(allocator, u8, @as(usize, groups) * layout.links.group_size);
    defer base.free_untouched(allocator, lengths);
    @memset(lengths, 0);
    const thread_count = @max(1, @min(threads, list_count / 1024 + 1));
    const parts = try allocator.alloc(Part, thread_count);
    defer allocator.free(parts);
    var started: usize = 0;
    defer for (parts[0..started]) |*part| part.heap.deinit(std.heap.page_allocator);
    for (parts, 0..) |*part, i| {
        part.* = .{
            .source = &source,
            .codec = &codec,
            .lengths = lengths,
            .begin = @intCast(@as(u64, list_count) * i / thread_count),
            .end = @intCast(@as(u64, list_count) * (i + 1) / thread_count),
        };
        started += 1;
    }
    for (parts[1..]) |*part| part.thread = std.Thread.spawn(.{}, Part.run, .{part}) catch null;
    parts[0].run();
    for (parts[1..]) |*part| if (part.thread) |thread| thread.join() else part.run();
    var heap_bytes: u64 = adjacency.over_read_bytes;
    for (parts) |*part| {
        if (part.failure) |failure| return failure;
        heap_bytes += part.heap.items.len;
    }

    const group_bytes = (@as(usize, groups) + 1) * 8;
    const memory = try base.AlignedBytes.alloc(@intCast(group_bytes + lengths.len + heap_bytes), .{ .huge_pages = true });
    const out_groups: []u64 = @alignCast(std.mem.bytesAsSlice(u64, memory.bytes[0..group_bytes]));
    const out_lengths = memory.bytes[group_bytes..][0..lengths.len];
    @memcpy(out_lengths, lengths);
    const heap = memory.bytes[group_bytes + lengths.len ..];
    var at: usize = 0;
    for (parts) |*part| {
        @memcpy(heap[at..][0..part.heap.items.len], part.heap.items);
        at += part.heap.items.len;
    }
    var begin: u64 = 0;
    for (out_groups[0..groups], 0..) |*group, i| {
        group.* = begin;
        for (lengths[i * layout.links.group_size ..][0..layout.links.group_size]) |length| begin += length;
    }
    out_groups[groups] = begin;
    return .{
        .lists = .{ .n = list_count, .codec = codec, .groups = out_groups, .lengths = out_lengths, .heap = heap },
        .memory = memory,
        .vertices = links.n,
        .shape = shape,
    };
}

/// The links of vertices that shared links are made of.
const Source = struct {
    links: *const Links,
    tiers: []const u8,
    /// Bytes of tiers a vertex.
    stride: u32,
    built: u32,
    directory: *const Directory,
    shape: Shape,
    release: Release,

    /// The first vertex of a stretch, or n.
    fn first(self: *const Source, stretch: u32) u32 {
        return @min(self.links.n, stretch * self.shape.stretch);
    }

    /// Releases what was read of the lists of these vertices.
    fn forget(self: *const Source, begin: u32, end: u32) void {
        const groups = self.links.groups;
        const from: usize = @intCast(groups[begin / layout.links.group_size]);
        const to: usize = @intCast(groups[std.math.divCeil(u32, end, layout.links.group_size) catch unreachable]);
        self.release(self.links.heap[from..to]);
        self.release(self.tiers[@as(usize, begin) * self.stride .. @as(usize, end) * self.stride]);
    }
};

/// Chooses the links of a stretch.
const Choice = struct {
    source: *const Source,
    found: std.ArrayList(Found) = .empty,
    chosen: [links_max]u32 = undefined,

    const Found = struct {
        page: u32,
        vertex: u32,
        weight: u32,

        fn by_place(_: void, a: Found, b: Found) bool {
            return a.vertex < b.vertex;
        }

        fn by_weight(_: void, a: Found, b: Found) bool {
            return if (a.weight == b.weight) a.vertex < b.vertex else a.weight > b.weight;
        }
    };

    fn init(allocator: std.mem.Allocator, source: *const Source) error{OutOfMemory}!Choice {
        return .{ .source = source, .found = try .initCapacity(allocator, @as(usize, source.shape.stretch) * source.built) };
    }

    fn deinit(self: *Choice, allocator: std.mem.Allocator) void {
        self.found.deinit(allocator);
    }

    /// The vertices, ascending, that the list of `stretch` leads to: at most `count`.
    fn of(self: *Choice, stretch: u32, count: u32) error{BadList}![]const u32 {
        const source = self.source;
        self.found.clearRetainingCapacity();
        var buffer: [adjacency.neighbors_max]u32 = undefined;
        const begin = source.first(stretch);
        const end = source.first(stretch + 1);
        const first_page = source.directory.page_of(begin);
        const last_page = source.directory.page_of(end - 1);
        for (begin..end) |vertex| {
            const ids = source.links.decode(@intCast(vertex), &buffer) catch return error.BadList;
            const tiers = source.tiers[vertex * source.stride ..][0..source.stride];
            if (ids.len > source.built or layout.links.tier_bytes(@intCast(ids.len)) > tiers.len) return error.BadList;
            for (ids, 0..) |id, link| {
                const tier = layout.links.get_tier(tiers, link);
                if (tier >= tiers_looked_at) continue;
                const there = source.directory.page_of(id);
                if (there < first_page or there > last_page) self.found.appendAssumeCapacity(.{ .page = there, .vertex = id, .weight = @as(u32, 8) - tier });
            }
        }
        const pages = self.merged();
        std.mem.sortUnstable(Found, pages, {}, Found.by_weight);
        const few = pages[0..@min(pages.len, count)];
        for (few, self.chosen[0..few.len]) |one, *id| id.* = one.vertex;
        std.mem.sortUnstable(u32, self.chosen[0..few.len], {}, std.sort.asc(u32));
        return self.chosen[0..few.len];
    }

    /// What was found, a page once: with the sum of its weights, and the vertex that most of them lead to.
    fn merged(self: *Choice) []Found {
        const found = self.found.items;
        std.mem.sortUnstable(Found, found, {}, Found.by_place);
        var pages: usize = 0;
        var heaviest: u32 = 0;
        var at: usize = 0;
        while (at < found.len) {
            const vertex = found[at].vertex;
            const page = found[at].page;
            var weight: u32 = 0;
            while (at < found.len and found[at].vertex == vertex) : (at += 1) weight += found[at].weight;
            // Vertices of a page stand side by side.
            if (pages == 0 or found[pages - 1].page != page) {
                found[pages] = .{ .page = page, .vertex = vertex, .weight = weight };
                pages += 1;
                heaviest = weight;
                continue;
            }
            const own = &found[pages - 1];
            own.weight += weight;
            if (weight > heaviest) {
                heaviest = weight;
                own.vertex = vertex;
            }
        }
        return found[0..pages];
    }
};

/// A run of stretches, whose lists one thread encodes into a heap of its own.
const Part = struct {
    source: *const Source,
    codec: *const adjacency.Codec,
    lengths: []u8,
    begin: u32,
    end: u32,
    heap: std.ArrayList(u8) = .empty,
    failure: ?Error = null,
    thread: ?std.Thread = null,

    fn run(self: *Part) void {
        self.encode() catch |err| {
            self.failure = err;
        };
    }

    fn encode(self: *Part) Error!void {
        var choice = try Choice.init(std.heap.page_allocator, self.source);
        defer choice.deinit(std.heap.page_allocator);
        var released = self.source.first(self.begin);
        for (self.begin..self.end) |number| {
            const stretch: u32 = @intCast(number);
            const first = self.source.first(stretch);
            var count = self.source.shape.links;
            var ids = try choice.of(stretch, count);
            while (self.codec.encoded_bytes(first, ids) > layout.links.list_bytes_max) {
                count -= links_given_up;
                ids = try choice.of(stretch, count);
            }
            const out = try self.heap.addManyAsSlice(std.heap.page_allocator, self.codec.encoded_bytes(first, ids));
            self.lengths[stretch] = @intCast(self.codec.encode(first, ids, out));
            if (first - released >= release_vertices) {
                self.source.forget(released, first);
                released = first;
            }
        }
        self.source.forget(released, self.source.first(self.end));
    }
};
