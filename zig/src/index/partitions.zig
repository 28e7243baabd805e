//! A build whose codes and graph do not fit its memory. Each partition (clusters.zig) gets a graph of its own, one after
//! another. The lists that a row has where it is at home and where it is a guest become one, on disk; what can then not be
//! reached from the entry is attached. Placement works on one partition's homes at a time, so pages never span partitions.
const std = @import("std");
const base = @import("base");
const graph = @import("graph");
const quant = @import("quant");
const clusters = @import("clusters.zig");
const diagnostics = @import("diagnostic.zig");
const resume_room = @import("resume.zig");
const Partly = @import("former.zig").Partly;
const work = @import("work.zig");
const writer = @import("writer.zig");
const Builder = @import("builder.zig").Builder;
const graph_stage = @import("graph_stage.zig");
const Clusters = clusters.Clusters;
const ListFile = @import("list_file.zig").ListFile;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// What each partition's graph holds: of every member in the order of rows its degree, then its neighbors' rows.
pub const parts_name = "parts.work";
pub const lists_name = "lists.work";
pub const placed_lists_name = "placed_lists.work";

pub const Partitions = struct {
    allocator: std.mem.Allocator,
    builder: *Builder,
    diagnostic: *Diagnostic,
    n: u32,
    count: u32,
    clusters: Clusters,
    /// By row.
    lists: ListFile,

    /// Builds and joins the graphs, or goes on where a killed build was.
    pub fn build(builder: *Builder, diagnostic: *Diagnostic) Error!Partitions {
        const allocator = builder.allocator;
        const n: u32 = @intCast(builder.options.n);
        const count = builder.plan.partitions;
        var own = try clusters.assign(allocator, &builder.work_points.?, n, builder.plan, builder.options.seed, branches_of(builder.options.degree), &builder.control, diagnostic);
        errdefer own.deinit(allocator);
        var lists = try ListFile.create(allocator, builder.dir, lists_name, builder.options.degree, diagnostic);
        errdefer lists.deinit();
        var self: Partitions = .{
            .allocator = allocator,
            .builder = builder,
            .diagnostic = diagnostic,
            .n = n,
            .count = count,
            .clusters = own,
            .lists = lists,
        };
        {
            const offsets = try allocator.alloc(u64, count + 1);
            defer allocator.free(offsets);
            var parts = try self.build_parts(offsets);
            defer parts.deinit();
            try self.merge(&parts, offsets);
        }
        try self.connect();
        return self;
    }

    pub fn deinit(self: *Partitions) void {
        self.clusters.deinit(self.allocator);
        self.lists.deinit();
    }

    // ---- graphs

    fn members(self: *const Partitions, partition: usize, guests_too: bool) Error![]u32 {
        var rows: std.ArrayList(u32) = .empty;
        errdefer rows.deinit(self.allocator);
        var count: usize = 0;
        for (0..2) |turn| {
            for (self.clusters.homes, self.clusters.guests, 0..) |home, guest, row| {
                if (home != partition and !(guests_too and guest == partition)) continue;
                if (turn == 0) count += 1 else rows.appendAssumeCapacity(@intCast(row));
            }
            if (turn == 0) try rows.ensureTotalCapacityPrecise(self.allocator, count);
        }
        return rows.toOwnedSlice(self.allocator);
    }

    fn load(self: *const Partitions, rows: []const u32) Error!quant.BuildCodes {
        var codes = try quant.BuildCodes.init(@intCast(rows.len), self.builder.params.dim);
        errdefer codes.deinit();
        try self.builder.work_points.?.load_rows(&codes, rows, self.diagnostic);
        return codes;
    }

    fn build_parts(self: *Partitions, offsets: []u64) Error!work.GrowingFile {
        const builder = self.builder;
        var places: u64 = self.n;
        for (self.clusters.guests) |guest| places += @intFromBool(guest != clusters.nowhere);
        builder.control.enter(.graph, places);
        var keeper: resume_room.PartsKeeper = .{ .allocator = self.allocator, .dir = builder.dir, .identity = builder.identity(), .diagnostic = self.diagnostic };
        @memset(offsets, 0);
        var done: u32 = 0;
        var parts = if (try keeper.restore(parts_name, offsets, &done)) |found| found else try work.GrowingFile.create(self.allocator, builder.dir, parts_name, self.diagnostic);
        errdefer parts.deinit();
        if (done > 0) {
            var inserted: u64 = 0;
            for (self.clusters.homes, self.clusters.guests) |home, guest| inserted += @as(u64, @intFromBool(home < done)) + @intFromBool(guest < done);
            builder.control.done.store(inserted, .monotonic);
        }
        var former: ?Partly = if (builder.plan.goes_on) try .init(&builder.former.?, self.allocator, &builder.options, self.diagnostic) else null;
        defer if (former) |*lists| lists.deinit();
        var saved_us = base.nowMicros();
        while (done < self.count) {
            try builder.control.check();
            try self.build_part(done, if (former) |*lists| lists else null, &parts);
            done += 1;
            offsets[done] = parts.bytes + parts.used;
            const due = base.nowMicros() - saved_us >= @as(u64, builder.options.checkpoint_ms) * std.time.us_per_ms;
            if (builder.options.transient) {
                if (done == self.count) try parts.flush(self.diagnostic);
            } else if (due or done == self.count) {
                try keeper.save(&parts, offsets[0 .. done + 1], builder.options.n * done / self.count);
                saved_us = base.nowMicros();
            }
        }
        return parts;
    }

    fn build_part(self: *Partitions, partition: u32, former: ?*Partly, parts: *work.GrowingFile) Error!void {
        const builder = self.builder;
        const rows = try self.members(partition, true);
        defer self.allocator.free(rows);
        if (rows.len == 0) return;
        var begun: ?graph.Begun = if (former) |lists| try lists.begin(rows, builder.plan.gone_max, builder.options.degree, self.diagnostic) else null;
        defer if (begun) |*lists| lists.deinit(self.allocator);
        var codes = try self.load(rows);
        defer codes.deinit();
        var options = graph_stage.graph_options(builder, builder.options.seed +% partition);
        // Reachable from the hub, to which the tree of hubs leads; a partition of guests alone has none.
        if (std.sort.binarySearch(u32, rows, self.clusters.hubs[partition], compare)) |hub| options.entry = @intCast(hub);
        const linked = if (begun) |*lists|
            graph_stage.go_on(builder, &codes, options, lists)
        else if (builder.options.metric == .ip)
            graph.build(quant.ProductCodes, self.allocator, &.of(&codes), options)
        else
            graph.build(quant.BuildCodes, self.allocator, &codes, options);
        var built = linked catch |err| return graph_stage.graph_error(self.diagnostic, err);
        defer built.deinit(self.allocator);
        for (0..built.n) |member| {
            const list = built.list(@intCast(member));
            for (list) |*id| id.* = rows[id.*];
            try parts.append(std.mem.asBytes(&@as(u32, @intCast(list.len))), self.diagnostic);
            try parts.append(std.mem.sliceAsBytes(list), self.diagnostic);
        }
    }

    fn compare(wanted: u32, row: u32) std.math.Order {
        return std.math.order(wanted, row);
    }

    // ---- one graph of them all

    /// Reads the lists of one partition, one after another.
    const Cursor = struct {
        at: u64,
        end: u64,
        buffer: []u32,
        from: usize = 0,
        to: usize = 0,

        fn next(self: *Cursor, parts: *const work.GrowingFile, degree_max: u32, diagnostic: *Diagnostic) Error![]const u32 {
            if (self.to - self.from < degree_max + 1 and self.at < self.end) {
                const kept = self.to - self.from;
                std.mem.copyForwards(u32, self.buffer[0..kept], self.buffer[self.from..self.to]);
                const some: usize = @intCast(@min(self.buffer.len - kept, (self.end - self.at) / @sizeOf(u32)));
                try parts.read_at(std.mem.sliceAsBytes(self.buffer[kept..][0..some]), self.at, diagnostic);
                self.at += some * @sizeOf(u32);
                self.from = 0;
                self.to = kept + some;
            }
            if (self.from < self.to and self.buffer[self.from] <= self.to - self.from - 1) {
                const list = self.buffer[self.from + 1 ..][0..self.buffer[self.from]];
                self.from += 1 + list.len;
                return list;
            }
            diagnostic.in_file(parts.name, "{s} was changed while it was in use", .{parts.name});
            return error.Io;
        }
    };

    /// Buffers of all cursors together.
    const merge_bytes = 4 << 20;

    fn merge(self: *Partitions, parts: *const work.GrowingFile, offsets: []const u64) Error!void {
        const degree = self.builder.options.degree;
        const each = @max(degree + 1, merge_bytes / @sizeOf(u32) / self.count);
        const memory = try base.alloc_untouched(self.allocator, u32, @as(usize, each) * self.count);
        defer base.free_untouched(self.allocator, memory);
        const cursors = try base.alloc_untouched(self.allocator, Cursor, self.count);
        defer base.free_untouched(self.allocator, cursors);
        for (cursors, 0..) |*cursor, i| cursor.* = .{ .at = offsets[i], .end = offsets[i + 1], .buffer = memory[i * each ..][0..each] };
        const tree = try self.hub_tree();
        defer self.allocator.free(tree);
        var branch: usize = 0;
        for (self.clusters.homes, self.clusters.guests, 0..) |home, guest, row| {
            if (row % 4096 == 0) try self.builder.control.check();
            var merged: Merged = .{ .row = @intCast(row), .degree = degree };
            while (branch < tree.len and tree[branch].parent == row) : (branch += 1) merged.add(tree[branch].child);
            const own = try cursors[home].next(parts, degree, self.diagnostic);
            const other: []const u32 = if (guest == clusters.nowhere) &.{} else try cursors[guest].next(parts, degree, self.diagnostic);
            merged.interleave(own, other);
            try self.lists.append(merged.ids[0..merged.len], self.diagnostic);
        }
        try self.lists.flush(self.diagnostic);
    }

    const Merged = struct {
        row: u32,
        degree: u32,
        len: u32 = 0,
        ids: [256]u32 = undefined,

        fn add(self: *Merged, id: u32) void {
            if (self.len == self.degree or id == self.row or std.mem.indexOfScalar(u32, self.ids[0..self.len], id) != null) return;
            self.ids[self.len] = id;
            self.len += 1;
        }

        /// Both lists begin with what serves best.
        fn interleave(self: *Merged, own: []const u32, other: []const u32) void {
            for (0..@max(own.len, other.len)) |i| {
                if (i < own.len) self.add(own[i]);
                if (i < other.len) self.add(other[i]);
            }
        }
    };

    const Edge = struct {
        parent: u32,
        child: u32,

        fn less(_: void, a: Edge, b: Edge) bool {
            return if (a.parent != b.parent) a.parent < b.parent else a.child < b.child;
        }
    };

    /// The edges of the tree of hubs, so that partitions which share no row can be reached; by parents.
    fn hub_tree(self: *const Partitions) error{OutOfMemory}![]Edge {
        var edges: std.ArrayList(Edge) = try .initCapacity(self.allocator, self.count);
        errdefer edges.deinit(self.allocator);
        for (self.clusters.hubs, self.clusters.parents) |child, first_parent| {
            if (child == clusters.no_row) continue;
            var parent = first_parent;
            while (parent != clusters.nowhere and self.clusters.hubs[parent] == clusters.no_row) parent = self.clusters.parents[parent];
            edges.appendAssumeCapacity(.{ .parent = if (parent == clusters.nowhere) self.clusters.entry else self.clusters.hubs[parent], .child = child });
        }
        std.sort.pdq(Edge, edges.items, {}, Edge.less);
        return edges.toOwnedSlice(self.allocator);
    }

    /// A row may stand in the tree twice, as the entry and as a hub; half a list at most leads down the tree.
    fn branches_of(degree: u32) u32 {
        return @max(1, degree / 4);
    }

    // ---- every row reachable

    /// As `graph.connect`, without distances: an unreachable row's own neighbors are near it, so one of them becomes its
    /// parent; where none of them can be reached either, what lies below its partition's hub or else the entry.
    fn connect(self: *Partitions) Error!void {
        var reached = try base.BitSet.init(self.allocator, self.n);
        defer reached.deinit(self.allocator);
        const stack = try base.alloc_untouched(self.allocator, u32, self.n);
        defer base.free_untouched(self.allocator, stack);
        try self.spread(&reached, stack, self.clusters.entry);
        for (0..self.n) |v| {
            const row: u32 = @intCast(v);
            if (reached.contains(row)) continue;
            try self.attach(row, try self.parent_of(row, &reached));
            try self.spread(&reached, stack, row);
        }
    }

    fn spread(self: *Partitions, reached: *base.BitSet, stack: []u32, start: u32) Error!void {
        reached.insert(start);
        stack[0] = start;
        var height: usize = 1;
        var steps: u32 = 0;
        while (height > 0) {
            steps +%= 1;
            if (steps % 4096 == 0) try self.builder.control.check();
            height -= 1;
            for (try self.lists.read(stack[height], self.diagnostic)) |neighbor| {
                if (!reached.insert_new(neighbor)) continue;
                stack[height] = neighbor;
                height += 1;
            }
        }
    }

    fn parent_of(self: *Partitions, row: u32, reached: *const base.BitSet) Error!u32 {
        const degree = self.builder.options.degree;
        var prng = base.Prng.init(row);
        var buffer: [256]u32 = undefined;
        const list = try self.copy(row, &buffer);
        var count: usize = 0;
        for (list) |neighbor| {
            if (!reached.contains(neighbor)) continue;
            if ((try self.lists.read(neighbor, self.diagnostic)).len < degree) return neighbor;
            list[count] = neighbor;
            count += 1;
        }
        // Any of them, for copies of one vector all have the same neighbors.
        if (count > 0) return list[@intCast(prng.below(count))];
        const hub = self.clusters.hubs[self.clusters.homes[row]];
        const top = if (reached.contains(hub)) hub else self.clusters.entry;
        var parent = top;
        for (0..64) |_| {
            const below = try self.lists.read(parent, self.diagnostic);
            if (below.len < degree) return parent;
            parent = below[@intCast(prng.below(below.len))];
        }
        return top;
    }

    fn copy(self: *Partitions, row: u32, buffer: *[256]u32) Error![]u32 {
        const list = try self.lists.read(row, self.diagnostic);
        @memcpy(buffer[0..list.len], list);
        return buffer[0..list.len];
    }

    /// A full parent gives up its last neighbor, to which the newcomer then leads.
    fn attach(self: *Partitions, row: u32, parent: u32) Error!void {
        const orphan = try self.insert(parent, row) orelse return;
        var buffer: [256]u32 = undefined;
        if (std.mem.indexOfScalar(u32, try self.copy(row, &buffer), orphan) == null) _ = try self.insert(row, orphan);
    }

    /// Puts a neighbor into the middle of a list: behind what leads down the tree, and before what memory may not keep.
    /// Returns the neighbor that had to leave for it.
    fn insert(self: *Partitions, row: u32, newcomer: u32) Error!?u32 {
        const degree = self.builder.options.degree;
        var buffer: [256]u32 = undefined;
        const list = try self.copy(row, &buffer);
        const given_up: ?u32 = if (list.len == degree) list[degree - 1] else null;
        const kept = @min(list.len, degree - 1);
        const at = @min(kept, degree / 2);
        std.mem.copyBackwards(u32, buffer[at + 1 .. kept + 1], buffer[at..kept]);
        buffer[at] = newcomer;
        try self.lists.write(row, buffer[0 .. kept + 1], self.diagnostic);
        return given_up;
    }

    // ---- pages

    /// One partition's homes, and its graph as far as it stays among them.
    const Loaded = struct {
        rows: []u32,
        codes: quant.BuildCodes,
        graph: graph.Graph,
        sizes: []u16,

        fn deinit(self: *Loaded, allocator: std.mem.Allocator) void {
            allocator.free(self.rows);
            self.codes.deinit();
            self.graph.deinit(allocator);
            base.free_untouched(allocator, self.sizes);
        }
    };

    /// `ranks`: where a row stands among the homes of its partition. `sizes`: of all records, by row, once they are known.
    fn load_homes(self: *Partitions, partition: usize, ranks: []const u32, sizes: ?[]const u16) Error!?Loaded {
        const allocator = self.allocator;
        const degree = self.builder.options.degree;
        const rows = try self.members(partition, false);
        errdefer allocator.free(rows);
        if (rows.len == 0) {
            allocator.free(rows);
            return null;
        }
        var codes = try self.load(rows);
        errdefer codes.deinit();
        var local: graph.Graph = .{
            .n = @intCast(rows.len),
            .degree_max = degree,
            .neighbors = try base.alloc_untouched(allocator, u32, rows.len * degree),
            .degrees = &.{},
            .entry = 0,
        };
        errdefer local.deinit(allocator);
        local.degrees = try base.alloc_untouched(allocator, u16, rows.len);
        const own_sizes = try base.alloc_untouched(allocator, u16, rows.len);
        errdefer base.free_untouched(allocator, own_sizes);
        const homes = self.clusters.homes;
        for (rows, local.degrees, own_sizes, 0..) |row, *local_degree, *size, member| {
            const list = try self.lists.read(row, self.diagnostic);
            size.* = if (sizes) |known| known[row] else graph_stage.size_guess(self.builder, list.len);
            const own_list = local.row(@intCast(member));
            local_degree.* = 0;
            for (list) |neighbor| if (homes[neighbor] == partition) {
                own_list[local_degree.*] = ranks[neighbor];
                local_degree.* += 1;
            };
        }
        local.entry = ranks[self.clusters.hubs[partition]];
        return .{ .rows = rows, .codes = codes, .graph = local, .sizes = own_sizes };
    }

    /// All partitions' pages one after another, as `Builder.place` makes those of one graph.
    pub fn place(self: *Partitions, page_size: u32) Error!resume_room.Placed {
        const allocator = self.allocator;
        const ranks = try base.alloc_untouched(allocator, u32, self.n);
        defer base.free_untouched(allocator, ranks);
        {
            const counts = try base.alloc_untouched(allocator, u32, self.count);
            defer base.free_untouched(allocator, counts);
            @memset(counts, 0);
            for (self.clusters.homes, ranks) |home, *rank| {
                rank.* = counts[home];
                counts[home] += 1;
            }
        }
        const sizes = try base.alloc_untouched(allocator, u16, self.n);
        defer base.free_untouched(allocator, sizes);
        var threshold: f32 = 0;
        {
            var draft = try self.place_with(page_size, ranks, null, &threshold);
            defer draft.deinit(allocator);
            if (!self.builder.options.page_links) {
                @memset(sizes, graph_stage.size_guess(self.builder, 0));
            } else try writer.record_sizes(allocator, .{ .rows = &self.lists }, self.builder.options.degree, draft.placement.order, self.builder.page_geometry(), sizes, self.diagnostic);
        }
        return self.place_with(page_size, ranks, sizes, &threshold);
    }

    /// Without sizes a draft: it has no colors, and finds out at which distance vectors are affine.
    fn place_with(self: *Partitions, page_size: u32, ranks: []const u32, sizes: ?[]const u16, threshold: *f32) Error!resume_room.Placed {
        const allocator = self.allocator;
        const options = &self.builder.options;
        const draft = sizes == null;
        self.builder.control.enter(.place, self.n);
        var order: std.ArrayList(u32) = try .initCapacity(allocator, self.n);
        errdefer order.deinit(allocator);
        var page_first: std.ArrayList(u32) = .empty;
        errdefer page_first.deinit(allocator);
        const colors = try base.alloc_untouched(allocator, u8, if (draft) 0 else self.n);
        errdefer base.free_untouched(allocator, colors);
        var affinity: f64 = 0;
        for (0..self.count) |partition| {
            var loaded = try self.load_homes(partition, ranks, sizes) orelse continue;
            defer loaded.deinit(allocator);
            var placement = try graph_stage.place_with(self.builder, &loaded.graph, &loaded.codes, page_size, loaded.sizes, draft, self.diagnostic);
            defer placement.deinit(allocator);
            const first: u32 = @intCast(order.items.len);
            if (draft) {
                const own = try graph.affinity_threshold(quant.BuildCodes, allocator, &loaded.codes, loaded.graph.n, options.affinity_percent, options.seed);
                affinity += own * @as(f64, @floatFromInt(loaded.graph.n)) / @as(f64, @floatFromInt(self.n));
            } else {
                const own = try graph.color(quant.BuildCodes, allocator, &loaded.codes, &placement, threshold.*);
                defer allocator.free(own);
                @memcpy(colors[first..][0..own.len], own);
            }
            for (placement.order) |member| order.appendAssumeCapacity(loaded.rows[member]);
            try page_first.ensureUnusedCapacity(allocator, placement.page_first.len);
            for (placement.page_first) |page| page_first.appendAssumeCapacity(first + page);
        }
        if (draft) threshold.* = @floatCast(affinity);
        const own_order = try order.toOwnedSlice(allocator);
        errdefer allocator.free(own_order);
        return .{ .placement = .{ .order = own_order, .page_first = try page_first.toOwnedSlice(allocator) }, .colors = colors };
    }

    /// The lists once more, in placement order, as the writer goes through them again and again.
    pub fn placed_lists(self: *Partitions, order: []const u32) Error!ListFile {
        var placed = try ListFile.create(self.allocator, self.builder.dir, placed_lists_name, self.builder.options.degree, self.diagnostic);
        errdefer placed.deinit();
        for (order, 0..) |row, vertex| {
            if (vertex % 4096 == 0) try self.builder.control.check();
            try placed.append(try self.lists.read(row, self.diagnostic), self.diagnostic);
        }
        try placed.flush(self.diagnostic);
        return placed;
    }
};
