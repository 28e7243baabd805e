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
const in_memory = @import("lists_in_memory.zig");
const assert = std.debug.assert;

/// The number of vertices that share links, and of those links; a list that would grow too long has fewer.
pub const Shape = struct {
    stretch: u32,
    links: u32,

    /// The number of links a vertex that an index with such lists reports.
    pub fn kept(shape: Shape) u32 {
        return shape.links / shape.stretch;
    }

    /// An estimate of the bytes of a list. Its targets are in few regions, so a gap takes fewer bits than one of targets drawn
    /// evenly would.
    pub fn list_bytes(shape: Shape, vertices: f64) f64 {
        const links = @min(@as(f64, @floatFromInt(shape.links)), vertices);
        const gap_bits = 3.0 + 0.75 * @log2(@max(1, vertices / @as(f64, @floatFromInt(shape.links))));
        return @min(@as(f64, layout.links.list_bytes_max), 3 + links * gap_bits / 8);
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

pub const BlockAdjacency = struct {
    /// A list a stretch; ids are vertices.
    lists: Links,
    memory: base.AlignedBytes,
    vertices: u32,
    shape: Shape,

    pub fn deinit(self: *BlockAdjacency) void {
        self.memory.free();
    }

    pub inline fn stretch_of(self: *const BlockAdjacency, vertex: u32) u32 {
        return vertex / self.shape.stretch;
    }

    /// The targets of the list of a stretch.
    pub inline fn decode(self: *const BlockAdjacency, stretch: u32, out: []u32) error{BadList}![]u32 {
        const list = self.lists.list(stretch);
        return self.lists.codec.decode(stretch * self.shape.stretch, list.bytes, list.length, self.vertices, out) catch return error.BadList;
    }

    pub fn memory_bytes(self: *const BlockAdjacency) u64 {
        return self.memory.bytes.len;
    }
};

/// The size of the lists of these vertices, rounded up.
pub fn estimate_bytes(shape: Shape, vertices: u32) u64 {
    const list = shape.list_bytes(@floatFromInt(vertices));
    const lists = shape.lists(vertices);
    const groups: u64 = layout.links.group_count(lists) + 1;
    return groups * (8 + layout.links.group_size) + @as(u64, @intFromFloat(@as(f64, @floatFromInt(lists)) * list)) + 64;
}

/// From the links of vertices. Consumes nothing.
pub fn make(allocator: std.mem.Allocator, built: in_memory.Built, directory: *const Directory, shape: Shape, threads: u32) in_memory.Error!BlockAdjacency {
    assert(built.most >= built_min and built.links.n == directory.n);
    const source: Choice.Source = .{ .built = built, .directory = directory, .shape = shape };
    const made = try in_memory.make(Choice, allocator, &source, shape.lists(built.links.n), threads);
    return .{ .lists = made.links, .memory = made.memory, .vertices = built.links.n, .shape = shape };
}

/// Chooses the links of a stretch.
const Choice = struct {
    source: *const Source,
    found: std.ArrayList(Found) = .empty,
    chosen: [links_max]u32 = undefined,

    pub const Source = struct {
        built: in_memory.Built,
        directory: *const Directory,
        shape: Shape,

        /// The first vertex of a stretch, or n.
        pub fn first(self: *const Source, stretch: u32) u32 {
            return @min(self.built.links.n, stretch * self.shape.stretch);
        }
    };

    pub const given_up = 8;

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

    pub fn init(allocator: std.mem.Allocator, source: *const Source) error{OutOfMemory}!Choice {
        return .{ .source = source, .found = try .initCapacity(allocator, @as(usize, source.shape.stretch) * source.built.most) };
    }

    pub fn deinit(self: *Choice, allocator: std.mem.Allocator) void {
        self.found.deinit(allocator);
    }

    /// The vertices, ascending, that the list of `stretch` leads to.
    pub fn of(self: *Choice, stretch: u32, most: u32) error{BadList}![]const u32 {
        const source = self.source;
        self.found.clearRetainingCapacity();
        var buffer: [adjacency.neighbors_max]u32 = undefined;
        const begin = source.first(stretch);
        const end = source.first(stretch + 1);
        const first_page = source.directory.page_of(begin);
        const last_page = source.directory.page_of(end - 1);
        for (begin..end) |vertex| {
            const ids = try source.built.decode(@intCast(vertex), &buffer);
            const tiers = try source.built.tiers_of(@intCast(vertex), ids);
            for (ids, 0..) |id, link| {
                const tier = layout.links.get_tier(tiers, link);
                if (tier >= tiers_looked_at) continue;
                const there = source.directory.page_of(id);
                if (there < first_page or there > last_page) self.found.appendAssumeCapacity(.{ .page = there, .vertex = id, .weight = @as(u32, 8) - tier });
            }
        }
        const pages = self.merged();
        std.mem.sortUnstable(Found, pages, {}, Found.by_weight);
        const few = pages[0..@min(pages.len, source.shape.links, most)];
        for (few, self.chosen[0..few.len]) |one, *id| id.* = one.vertex;
        std.mem.sortUnstable(u32, self.chosen[0..few.len], {}, std.sort.asc(u32));
        return self.chosen[0..few.len];
    }

    /// The pages found, each once: with the sum of its weights, and the vertex that most of them lead to.
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
