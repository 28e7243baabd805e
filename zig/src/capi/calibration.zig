//! Expected recall and cost of searches: by the table behind `recall`, and with other budgets.
const std = @import("std");
const index = @import("index");
const search = @import("search");
const filter_room = @import("filter");
const call = @import("call.zig");
const common = @import("common.zig");
const handles = @import("handles.zig");
const Handle = handles.Handle;
const Index = @import("handle.zig").Index;

pub const Expectation = extern struct {
    struct_size: u32,
    calibrated: i32,
    list_size: u32,
    recall: f32,
    reads: f32,
    rounds: f32,
    estimates: f32,
    expanded: f32,
    records_scored: f32,

    /// `cached`: the share of pages that have room in memory.
    fn of(parameters: *const search.Parameters, reader: *const index.Reader, calibration: search.Calibration, cached: f32) Expectation {
        var expectation: Expectation = std.mem.zeroes(Expectation);
        expectation.list_size = parameters.list_size;
        const whole = if (parameters.every) search.expected_of_every(reader, parameters) else if (parameters.scan) calibration.expected_of_scan() else null;
        if (whole orelse calibration.expected(parameters.k, parameters.list_size)) |expected| {
            expectation.calibrated = 1;
            expectation.recall = expected.recall;
            expectation.reads = expected.reads;
            expectation.rounds = expected.rounds;
            expectation.estimates = expected.estimates;
            expectation.expanded = expected.expanded;
            expectation.records_scored = expected.scored;
        }
        if (parameters.every) return expectation;
        // Of queries that ask for all pages alike; others read less.
        expectation.reads *= 1 - cached;
        if (cached == 1) expectation.rounds = 0;
        return expectation;
    }
};

export fn velo_expect(handle: Handle, options: ?*const call.SearchOptions, expectation_out: ?*Expectation) i32 {
    return common.status_of_call(expect(handle, options, expectation_out));
}

fn expect(handle: Handle, options: ?*const call.SearchOptions, expectation_out: ?*Expectation) common.Failure!void {
    const self = try handles.enter(Index, "index", handle);
    defer handles.leave(handle);
    const out = try common.need("expectation_out", expectation_out);
    const asked = try call.Asked.of(self, options);
    common.write_versioned(Expectation, out, &.of(&asked.parameters, &self.reader, self.calibration(), self.page_caches.share()));
}

pub const MemoryPlan = extern struct {
    struct_size: u32,
    plan: i32,
    links_kept: u32,
    page_codes_kept: u32,
    codes_bytes: u64,
    pages_bytes: u64,
    links_bytes: u64,
    cache_bytes: u64,
};

export fn velo_plan_for(
    handle: Handle,
    memory_bytes: u64,
    options: ?*const call.SearchOptions,
    plan_out: ?*MemoryPlan,
    expectation_out: ?*Expectation,
) i32 {
    return common.status_of_call(plan_for(handle, memory_bytes, options, plan_out, expectation_out));
}

fn plan_for(handle: Handle, memory_bytes: u64, options: ?*const call.SearchOptions, plan_out: ?*MemoryPlan, expectation_out: ?*Expectation) common.Failure!void {
    const self = try handles.enter(Index, "index", handle);
    defer handles.leave(handle);
    const out = try common.need("plan_out", plan_out);
    const expected_out = try common.need("expectation_out", expectation_out);
    const o = try common.read(call.SearchOptions, "options", options);
    var diagnostic: index.Diagnostic = .{};
    var plan: search.Plan = .walk;
    var chosen: MemoryPlan = std.mem.zeroes(MemoryPlan);
    // The share of pages that have room in memory.
    var cached: f32 = 0;
    chosen.pages_bytes = self.reader.memory_pages_bytes();
    // An index with codes of records is opened with codes of vectors only where there is no room for those of pages.
    const of_records = if (self.reader.manifest().record_codes) self.reader.page_codes_within(memory_bytes, &diagnostic) catch |err| found: {
        if (err != error.BudgetTooSmall) return common.report_index(err, &diagnostic);
        break :found null;
    } else null;
    if (of_records) |kept| {
        cached = add_page_codes(&chosen, &self.reader, kept, memory_bytes);
    } else if (self.reader.links_within(memory_bytes, &diagnostic)) |links| {
        plan = if (links == null) .links_on_disk else .links_in_memory;
        chosen.codes_bytes = self.reader.memory_codes_bytes();
        if (links) |kept| {
            chosen.links_kept = kept.kept;
            chosen.links_bytes = kept.bytes;
            cached = add_caches(&chosen, &self.reader, memory_bytes);
        } else chosen.cache_bytes = memory_bytes -| (chosen.codes_bytes + chosen.pages_bytes);
    } else |err| {
        if (err != error.BudgetTooSmall) return common.report_index(err, &diagnostic);
        var second: index.Diagnostic = .{};
        const of_pages = self.reader.page_codes_within(memory_bytes, &second) catch |another| return common.report_index(another, &second);
        const kept = of_pages orelse return common.report_index(err, &diagnostic);
        cached = add_page_codes(&chosen, &self.reader, kept, memory_bytes);
    }
    chosen.plan = common.number_of(common.Plan, plan);
    const calibration: search.Calibration = .of(self.reader.manifest(), plan, @max(chosen.links_kept, chosen.page_codes_kept));
    const parameters = try call.parameters_of(&o, calibration);
    common.write_versioned(MemoryPlan, out, &chosen);
    common.write_versioned(Expectation, expected_out, &.of(&parameters, &self.reader, calibration, cached));
}

fn add_page_codes(chosen: *MemoryPlan, reader: *const index.Reader, kept: index.Reader.PageCodesKept, memory_bytes: u64) f32 {
    chosen.page_codes_kept = kept.kept;
    chosen.codes_bytes = kept.bytes;
    return add_caches(chosen, reader, memory_bytes);
}

/// Page caches in what codes and links leave; returns the share of pages that have room.
fn add_caches(chosen: *MemoryPlan, reader: *const index.Reader, memory_bytes: u64) f32 {
    var cached: f32 = 0;
    const left_bytes = memory_bytes -| (chosen.codes_bytes + chosen.links_bytes + chosen.pages_bytes);
    for (search.PageCaches.within(reader, left_bytes), 0..) |within, file| if (within) |cache| {
        const pages = cache.pages();
        chosen.cache_bytes += pages * @as(u64, cache.page_size);
        if (file == 0) cached = @as(f32, @floatFromInt(pages)) / @as(f32, @floatFromInt(cache.page_count));
    };
    return cached;
}

// ---- plans of filters ----
//
// Expectations and choice of the planner of filtered searches, for `explain`.

pub const Cost = extern struct {
    /// 0: the plan cannot be had as the index is open.
    possible: u32 = 0,
    reserved: u32 = 0,
    reads: f64 = 0,
    estimates: f64 = 0,
    expanded: f64 = 0,
    us: f64 = 0,

    fn of(cost: search.filter_plan.Cost) Cost {
        return .{
            .possible = @intFromBool(cost.possible),
            .reads = cost.reads,
            .estimates = cost.estimates,
            .expanded = cost.expanded,
            .us = cost.ns / 1000,
        };
    }
};

pub const Plan = extern struct {
    struct_size: u32 = @sizeOf(Plan),
    plan: i32 = 0,
    matches: f64 = 0,
    matches_exact: u32 = 0,
    list_size: u32 = 0,
    scan: Cost = .{},
    gate: Cost = .{},
    late: Cost = .{},
    gate_needs_bytes: u64 = 0,
};

export fn velo_filter_plan(handle: Handle, filter: ?*const filter_room.Filter, options: ?*const call.SearchOptions, plan_out: ?*Plan) i32 {
    return common.status_of_call(plan_of(handle, filter, options, plan_out));
}

fn plan_of(handle: Handle, filter: ?*const filter_room.Filter, options: ?*const call.SearchOptions, plan_out: ?*Plan) common.Failure!void {
    const self = try handles.enter(Index, "index", handle);
    defer handles.leave(handle);
    const one = try common.need("filter", filter);
    const out = try common.need("plan_out", plan_out);
    const asked = try call.Asked.of(self, options);
    try self.check_filter(one, 0);
    const parameters = &asked.parameters;
    const choice = search.filter_plan.choice_of(&self.shared, one, parameters);
    common.write_versioned(Plan, out, &.{
        .plan = common.number_of(common.FilterPlan, search.filter_plan.plan_of(&self.shared, one, parameters)),
        .matches = one.estimate() * @as(f64, @floatFromInt(self.reader.n())),
        .matches_exact = @intFromBool(one.is_exact()),
        .list_size = parameters.list_size,
        .scan = .of(choice.scan),
        .gate = .of(choice.traversal),
        .late = .of(choice.late),
        .gate_needs_bytes = if (choice.traversal.possible) 0 else self.reader.bytes_with_links(),
    });
}
