//! Searching an open index: one query's state machine, many queries on one device, counters.
pub const Shared = @import("shared.zig").Shared;
pub const Plan = @import("shared.zig").Plan;
pub const Ablations = @import("ablations.zig").Ablations;
pub const open_cache = @import("cache_plan.zig").open_cache;
pub const CacheBudget = @import("cache_plan.zig").Budget;
pub const Cache = @import("cache").Cache;
pub const Search = @import("search_state.zig").Search;
pub const File = @import("search_state.zig").File;
pub const rescoring = @import("rescoring.zig");
pub const expected_of_every = @import("every.zig").expected;
pub const parameters = @import("parameters.zig");
pub const Parameters = parameters.Parameters;
pub const FilterPlan = parameters.FilterPlan;
pub const calibration = @import("calibration.zig");
pub const Calibration = calibration.Calibration;
pub const engine = @import("engine.zig");
pub const Engine = engine.Engine;
pub const EngineOptions = engine.Options;
pub const filter_plan = @import("filter_plan.zig");
pub const prepare_filters = filter_plan.prepare_filters;
pub const job = @import("job.zig");
pub const Job = job.Job;
pub const Answers = job.Answers;
pub const cost = @import("cost.zig");
pub const Outcome = job.Outcome;

test {
    _ = @import("ablations.zig");
    _ = @import("bound.zig");
    _ = @import("entry.zig");
    _ = @import("list.zig");
    _ = @import("page_set.zig");
    _ = @import("pending.zig");
    _ = @import("recent_pages.zig");
    _ = @import("round.zig");
    _ = @import("search_state.zig");
    _ = cost;
    _ = @import("worker.zig");
    _ = job;
    _ = parameters;
    _ = calibration;
    _ = @import("in_flight.zig");
    _ = filter_plan;
    _ = rescoring;
    _ = @import("record.zig");
    _ = @import("cache_plan.zig");
}
